"""Caps on what one image may cost, checked from its header before anything is allocated."""

from __future__ import annotations

from dataclasses import dataclass

from headwater.errors import SampleTooLarge, WrongUse

# Measured with libjpeg-turbo, rounded up: every scan passes over all pixels, every byte is unpacked once.
_PIXEL_SECONDS = 8e-9
_SCAN_PIXEL_SECONDS = 1e-9
_BYTE_SECONDS = 2e-8


@dataclass(frozen=True, slots=True)
class Limits:
    """What one image may take: bytes of the file, pixels, scans of a JPEG, seconds to decode.

    A decoder cannot be interrupted, so seconds are estimated beforehand, for a core of about 2020.
    """

    bytes: int = 64 << 20
    pixels: int = 64_000_000
    scans: int = 100
    seconds: float = 10.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if not value > 0:  # nor does a NaN
                raise WrongUse(f"limit {name}={value} lets no image through; give a positive number")

    def within(self, other: Limits) -> Limits:
        """The tighter of both, cap by cap."""
        return Limits(*(min(getattr(self, name), getattr(other, name)) for name in self.__slots__))

    def check_bytes(self, length: int) -> None:
        """Raise `SampleTooLarge` for a file of too many bytes."""
        if length > self.bytes:
            raise SampleTooLarge(f"{length} bytes are past the cap of {self.bytes}; raise Limits.bytes")

    def check_pixels(self, height: int, width: int) -> None:
        """Raise `SampleTooLarge` for too many pixels."""
        if height * width > self.pixels:
            raise SampleTooLarge(
                f"{height} x {width} pixels are past the cap of {self.pixels}; raise Limits.pixels"
            )

    def check_seconds(self, scans: int, pixels: int, length: int) -> None:
        """Raise `SampleTooLarge` for too long a decode: scans times pixels, and bytes."""
        seconds = pixels * (_PIXEL_SECONDS + scans * _SCAN_PIXEL_SECONDS) + length * _BYTE_SECONDS
        if seconds > self.seconds:
            raise SampleTooLarge(
                f"{pixels} pixels in {scans} scans take about {seconds:.1f} s to decode, past the cap of"
                f" {self.seconds:g} s; raise Limits.seconds"
            )


DEFAULT_LIMITS = Limits()
