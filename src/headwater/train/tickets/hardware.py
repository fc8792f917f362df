"""How many channels at a time the hardware computes: more cost nothing up to the next multiple."""

from __future__ import annotations

import torch
from torch import nn

_WIDE_CPU = "AVX512"


def channel_multiple(model: nn.Module) -> int:
    """16 on a CPU with AVX-512, which convolves blocks of 16 channels; 8 on others, and on accelerators.

    The 8 of an accelerator is what tensor cores document for half precision; it was not measured here.
    """
    device = next(model.parameters()).device
    wide = device.type == "cpu" and torch.backends.cpu.get_cpu_capability() == _WIDE_CPU
    return 16 if wide else 8
