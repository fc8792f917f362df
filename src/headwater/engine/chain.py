"""The steps of a pipeline, run over a chunk of samples: headers and draws in bulk, pixels one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headwater.data.image import DEFAULT_LIMITS, Header, Limits, decode, read_header
from headwater.data.pipeline import Pipeline
from headwater.data.steps.base import Image, Row, Sizes
from headwater.data.steps.decode import Decode
from headwater.errors import SampleTooLarge

Value = Any  # the bytes of a file before decode, an image after it
Ids = NDArray[np.int64]
Box = tuple[int, int, int, int]  # top, left, height, width
Drawn = Sequence[Row] | SampleTooLarge  # what the steps drew for a sample, or why it must not reach them


class Lot(Protocol):
    """A chunk of samples on their way: who they are, and where each goes when it is made or fails."""

    @property
    def ids(self) -> Ids: ...
    @property
    def epoch(self) -> int: ...
    def emit(self, place: int, image: Image) -> None: ...
    def fail(self, place: int, stage: str, error: Exception) -> None: ...


class Noting(Lot, Protocol):
    """A lot that wants to know what was drawn; told before the sample is decoded."""

    def note(self, place: int, header: Header, size: tuple[int, int], rows: Sequence[Row]) -> None: ...


class Seeing(Lot, Protocol):
    """A lot that wants the whole picture too, for something else; it is then decoded whole, and once."""

    def see(self, place: int, image: Image) -> None: ...


class _Part:
    """Some places of a lot, numbered anew."""

    def __init__(self, lot: Lot, places: NDArray[np.intp]) -> None:
        self._lot = lot
        self.places = places.tolist()
        self.ids, self.epoch = lot.ids[places], lot.epoch
        if hasattr(lot, "note"):
            self.note = lambda place, *facts: lot.note(self.places[place], *facts)
        if hasattr(lot, "see"):
            self.see = lambda place, image: lot.see(self.places[place], image)

    def emit(self, place: int, image: Image) -> None:
        self._lot.emit(self.places[place], image)

    def fail(self, place: int, stage: str, error: Exception) -> None:
        self._lot.fail(self.places[place], stage, error)


@dataclass(frozen=True)
class Chain:
    """A stretch of a pipeline with the seed that keys its draws and the caps that guard its decoder.

    It may begin anywhere: before decode it takes files, after it images. Where the decoder is
    followed by a crop, only the pixels of the crop are decoded.
    """

    pipeline: Pipeline
    seed: int = 0
    limits: Limits = DEFAULT_LIMITS

    def run(self, values: Sequence[Value], lot: Lot, *, done: NDArray[np.uint8] | None = None) -> None:
        """Every sample ends in `lot.emit` or, if it cannot be made, in `lot.fail`.

        `done` says how many steps each value has already been through; None means none.
        """
        if done is not None and done.any():
            for cut in np.unique(done).tolist():
                (places,) = np.nonzero(done == cut)
                part = _Part(lot, places)
                self._rest(cut).run([values[place] for place in part.places], part)
            return
        steps = self.pipeline.steps
        if not steps:
            for place, value in enumerate(values):
                lot.emit(place, value)
        elif isinstance(steps[0], Decode):
            self._run_files(values, lot, steps[0])
        else:
            self._run_images(values, lot)

    def _rest(self, cut: int) -> Chain:
        return Chain(self.pipeline.cut(cut)[1], self.seed, self.limits)

    def _run_images(self, images: Sequence[Image], lot: Lot) -> None:
        sizes = np.array([image.shape[:2] for image in images], np.int64).reshape(-1, 2)
        each = self._draw(self.pipeline, lot.ids, sizes, lot.epoch)
        for place, (image, drawn) in enumerate(zip(images, each, strict=True)):
            self._finish(place, image, lot, done=0, drawn=drawn)

    def locate(
        self, files: Sequence[Value], lot: Lot
    ) -> Iterator[tuple[int, Header, Sequence[Row], Box | None]]:
        """Place, header, draws and the box of the first crop of each file, which is not decoded.

        For a chain that begins with the decoder. A file that cannot be read goes to `lot.fail`; the box is
        None where no crop follows the decoder, or the image is too small for it.
        """
        step = self.pipeline.steps[0]
        assert isinstance(step, Decode)
        headers, places = self._headers(files, lot)
        if not places:
            return
        sizes = [header.size(oriented=step.oriented) for header in headers]
        each = self._draw(self.pipeline, lot.ids[places], np.array(sizes, np.int64), lot.epoch)
        fused = len(self.pipeline) > 1 and self.pipeline.steps[1].crops
        note = getattr(lot, "note", None)
        for place, header, size, drawn in zip(places, headers, sizes, each, strict=True):
            try:
                rows = _check(drawn)
                if note is not None:
                    note(place, header, size, rows)
                box = find_box(rows[1], size) if fused else None
            except Exception as error:
                lot.fail(place, "decode", error)
                continue
            yield place, header, rows, box

    def _run_files(self, files: Sequence[Value], lot: Lot, step: Decode) -> None:
        see = getattr(lot, "see", None)
        for place, header, rows, found in self.locate(files, lot):
            box = found if see is None else None
            try:
                image = decode(files[place], header, mode=step.mode, oriented=step.oriented, box=box)
            except Exception as error:
                lot.fail(place, "decode", error)
                continue
            if see is not None:
                see(place, image)
            self._finish(place, image, lot, done=1 if box is None else 2, drawn=rows)

    def _headers(self, files: Sequence[Value], lot: Lot) -> tuple[list[Header], list[int]]:
        headers, places = [], []
        for place, file in enumerate(files):
            try:
                headers.append(read_header(file, self.limits))
                places.append(place)
            except Exception as error:
                lot.fail(place, "decode", error)
        return headers, places

    def _finish(self, place: int, image: Image, lot: Lot, *, done: int, drawn: Drawn) -> None:
        """The steps after `done`, with what was drawn; past an opaque step each sample is drawn alone."""
        steps = self.pipeline.steps
        number = done
        try:
            rows = _check(drawn)
            while number < len(steps):
                if number == len(rows):
                    rows = [*rows, *self._draw_alone(number, image, lot, place)]
                image = steps[number].apply(image, rows[number])
                number += 1
        except Exception as error:
            lot.fail(place, steps[number].name, error)
            return
        lot.emit(place, image)

    def _draw_alone(self, number: int, image: Image, lot: Lot, place: int) -> Sequence[Row]:
        rest = self.pipeline.cut(number)[1]
        sizes = np.array([image.shape[:2]], np.int64)
        (drawn,) = self._draw(rest, lot.ids[place : place + 1], sizes, lot.epoch)
        return _check(drawn)

    def _draw(self, pipeline: Pipeline, ids: Ids, sizes: Sizes, epoch: int) -> list[Drawn]:
        """What each sample draws; a sample that a step would blow up past the cap draws an error."""
        rows, most = pipeline.trace(ids, sizes, seed=self.seed, epoch=epoch)
        drawn: list[Drawn] = list(zip(*(each.tolist() for each in rows), strict=True))
        for place in np.flatnonzero(most > self.limits.pixels).tolist():
            drawn[place] = SampleTooLarge(
                f"a step would make {most[place]:,.0f} pixels of it, the cap is {self.limits.pixels:,}; "
                "crop first, or raise limits.pixels"
            )
        return drawn


def _check(drawn: Drawn) -> Sequence[Row]:
    if isinstance(drawn, SampleTooLarge):
        raise drawn
    return drawn


def find_box(row: Row, size: tuple[int, int]) -> Box | None:
    """The box that a crop has drawn; None if the image is too small, which the crop itself explains."""
    top, left, height, width = map(int, row)
    fits = min(top, left) >= 0 and top + height <= size[0] and left + width <= size[1]
    return (top, left, height, width) if fits else None
