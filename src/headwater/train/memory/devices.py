"""Whose memory a budget counts, and how much of the host's may be taken for it."""

from __future__ import annotations

import os

import torch

from headwater.data.bytecount import parse_bytes
from headwater.errors import WrongUse

HOST_SHARE = 4
"""One part in so many of the machine's memory is for what left an accelerator, unless one says otherwise."""


def find_device(device: str | torch.device | None) -> torch.device:
    """With its number; for None, torch's current accelerator if there is one, else the CPU.

    Raises `WrongUse` for one that torch does not have here, and for one without streams.
    """
    if device is None:
        device = torch.accelerator.current_accelerator(check_available=True) or "cpu"
    try:
        found = torch.device(device)
        module = torch.get_device_module(found)
    except RuntimeError as error:
        raise WrongUse(f"torch knows no device {device!r}; give one such as 'cuda:0' or 'cpu'") from error
    if found.type == "cpu":
        return torch.device("cpu")
    if not hasattr(module, "Stream") or not hasattr(module, "Event"):
        raise WrongUse(f"{found} has no streams to carry tensors beside computing; give 'cuda' or 'cpu'")
    count = module.device_count() if module.is_available() else 0
    if (found.index or 0) >= count:
        raise WrongUse(
            f"torch has {count} devices of kind {found.type} here, {found} is none of them; "
            "leave `device` out, or give one that is there"
        )
    return torch.device(found.type, module.current_device() if found.index is None else found.index)


def find_host_bytes(host: int | str | None, device: torch.device) -> int:
    """Bytes of host memory for what leaves the device; raises `WrongUse` for a CPU, which has no other."""
    if device.type == "cpu":
        if host is not None:
            raise WrongUse(
                f"host={host!r} with a budget for the CPU: what leaves RAM goes to a file; "
                "leave `host` out, or give the accelerator whose memory is short as `device`"
            )
        return 0
    if host is None:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // HOST_SHARE
    found = parse_bytes(host)
    if found < 0:
        raise WrongUse(f"{found} bytes of host memory are less than none; give 0 to use the file alone")
    return found
