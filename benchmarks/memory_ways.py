"""Ways to train with less memory that someone would defend: what ours is compared with."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

Way = Callable[[nn.Sequential], AbstractContextManager[nn.Module]]


class Blocks(nn.Module):
    """Each block of a row is computed again in backward."""

    def __init__(self, net: nn.Sequential) -> None:
        super().__init__()
        self.net = net

    def forward(self, values: Tensor) -> Tensor:
        for block in self.net:
            values = checkpoint(block, values, use_reentrant=False)
        return values


class Spill:
    """Saved tensors go to a file at once and come back when they are asked for; parameters stay."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - `close` closes it
        self._end = 0

    def hooks(self) -> saved_tensors_hooks:
        return saved_tensors_hooks(self._write, self._read)

    def _write(self, tensor: Tensor) -> object:
        base = tensor if tensor._base is None else tensor._base
        if isinstance(base, nn.Parameter) or tensor.numel() * tensor.itemsize < 4096:
            return tensor
        flat = tensor.detach().contiguous()
        place, self._end = self._end, self._end + flat.numel() * flat.itemsize
        os.pwrite(self._file.fileno(), memoryview(_bytes(flat)), place)
        return place, tensor.dtype, tensor.shape, tensor.stride()

    def _read(self, handle: object) -> Tensor:
        if isinstance(handle, Tensor):
            return handle
        place, dtype, shape, stride = handle  # type: ignore[misc]
        flat = torch.empty(shape, dtype=dtype)
        os.preadv(self._file.fileno(), [memoryview(_bytes(flat))], place)
        return (
            flat if flat.stride() == stride else torch.empty_strided(shape, stride, dtype=dtype).copy_(flat)
        )

    def restart(self) -> None:
        """A new iteration may write over the last one's tensors."""
        self._end = 0

    def close(self) -> None:
        self._file.close()


def _bytes(tensor: Tensor) -> np.ndarray:
    return tensor.view(-1).view(torch.uint8).numpy()


def plain(net: nn.Sequential) -> AbstractContextManager[nn.Module]:
    return nullcontext(net)


def blocks(net: nn.Sequential) -> AbstractContextManager[nn.Module]:
    """Per-block checkpointing."""
    return nullcontext(Blocks(net))


@contextmanager
def everything(net: nn.Sequential) -> Iterator[nn.Module]:
    """Spill every saved tensor."""
    spill = Spill()
    handle = net.register_forward_pre_hook(lambda *_: spill.restart())
    try:
        with spill.hooks():
            yield net
    finally:
        handle.remove()
        spill.close()


@contextmanager
def layer_inputs(net: nn.Sequential) -> Iterator[nn.Module]:
    """Spill the inputs of layers with weights, as vDNN does with those of convolutions."""
    spill = Spill()
    active: list[saved_tensors_hooks] = []

    def enter(*_: object) -> None:
        active.append(spill.hooks())
        active[-1].__enter__()

    def leave(*_: object) -> None:
        active.pop().__exit__()

    layers = [layer for layer in net.modules() if isinstance(layer, nn.Conv2d | nn.Linear | nn.LSTM)]
    handles = [net.register_forward_pre_hook(lambda *_: spill.restart())]
    for layer in layers:
        handles += [
            layer.register_forward_pre_hook(enter),
            layer.register_forward_hook(leave, always_call=True),
        ]
    try:
        yield net
    finally:
        for handle in handles:
            handle.remove()
        spill.close()


RIVALS: dict[str, Way] = {
    "plain": plain,
    "blocks": blocks,
    "layer inputs": layer_inputs,
    "everything": everything,
}
