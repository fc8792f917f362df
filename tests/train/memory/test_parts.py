"""Backward steps in parts give what they give in one, with less in memory at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fulldisk import files_no_larger_than
from headwater.errors import SpillFailed
from headwater.train.memory.holding import Holding
from headwater.train.memory.parts import FewChannelsAtATime, Parts
from headwater.train.memory.relief import Relief
from headwater.train.memory.shelf import NoDisk, Shelf, without_content
from headwater.train.memory.spill import SpillFile
from scarcity import NO_MEMORY, Scarce

LAYERS = {
    "plain": (torch.nn.Conv2d(16, 16, 3, padding=1, bias=False), (8, 16, 14, 14)),
    "bias": (torch.nn.Conv2d(3, 10, 5), (4, 3, 12, 13)),
    "stride and dilation": (torch.nn.Conv2d(8, 4, 3, stride=2, dilation=2), (3, 8, 15, 15)),
    "groups": (torch.nn.Conv2d(12, 24, 3, groups=4), (5, 12, 9, 9)),
    "depthwise": (torch.nn.Conv2d(12, 12, 3, groups=12), (5, 12, 9, 9)),
    "pointwise": (torch.nn.Conv2d(32, 8, 1), (6, 32, 8, 8)),
    "transposed": (torch.nn.ConvTranspose2d(6, 5, 3, stride=2, output_padding=1), (4, 6, 7, 7)),
    "one dimension": (torch.nn.Conv1d(7, 9, 4), (4, 7, 33)),
    "three dimensions": (torch.nn.Conv3d(2, 5, 3), (2, 2, 8, 7, 6)),
    "double": (torch.nn.Conv2d(4, 4, 3).double(), (4, 4, 9, 9)),
    "circular": (torch.nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"), (4, 4, 9, 9)),
}


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[Shelf]:
    file = SpillFile(tmp_path)
    yield Shelf(file)
    assert file.used == 0, "a place was not given back"
    file.close()


def gradients(layer: torch.nn.Module, values: Tensor) -> list[Tensor]:
    layer.zero_grad()
    values = values.clone().requires_grad_()
    torch.manual_seed(1)
    output = layer(values)
    output.backward(torch.randn_like(output))
    return [one.grad for one in (values, *layer.parameters()) if one.grad is not None]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("kind", LAYERS)
def test_parts_give_the_same_bits(kind: str, layout: torch.memory_format, shelf: Shelf) -> None:
    layer, shape = LAYERS[kind]
    torch.manual_seed(0)
    values = torch.randn(shape, dtype=next(layer.parameters()).dtype)
    if len(shape) == 4:
        values = values.contiguous(memory_format=layout)
    expected = gradients(layer, values)
    scarce = Scarce("convolution_backward", 1)
    with scarce, Relief(lambda: False, Parts(shelf, lambda tensor: True)):
        found = gradients(layer, values)
    assert scarce.times == 0, "else nothing was split"
    assert all(map(torch.equal, found, expected))
    assert [one.stride() for one in found] == [one.stride() for one in expected]


NORMS = {
    "images": (torch.nn.BatchNorm2d(17), (6, 17, 5, 7)),
    "few channels": (torch.nn.BatchNorm2d(4), (33, 4, 32, 32)),
    "one dimension": (torch.nn.BatchNorm1d(32), (9, 32, 11)),
    "three dimensions": (torch.nn.BatchNorm3d(8), (2, 8, 3, 4, 5)),
    "not affine": (torch.nn.BatchNorm2d(9, affine=False), (6, 9, 8, 8)),
    "without statistics": (torch.nn.BatchNorm2d(9, track_running_stats=False), (6, 9, 8, 8)),
    "double": (torch.nn.BatchNorm2d(12).double(), (6, 12, 8, 8)),
    "frozen": (torch.nn.BatchNorm2d(12).eval(), (6, 12, 8, 8)),
}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kind", NORMS)
def test_few_channels_at_a_time_give_the_same_bits(kind: str, threads: int, shelf: Shelf) -> None:
    layer, shape = NORMS[kind]
    torch.manual_seed(0)
    values = torch.randn(shape, dtype=torch.float64 if kind == "double" else torch.float32)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        expected = gradients(layer, values)
        scarce = Scarce("native_batch_norm_backward", 1)
        with scarce, Relief(lambda: False, Parts(shelf, lambda tensor: False)):
            found = gradients(layer, values)
    finally:
        torch.set_num_threads(before)
    assert scarce.times == 0, "else nothing was split"
    assert all(map(torch.equal, found, expected))
    assert [one.stride() for one in found] == [one.stride() for one in expected]


def test_pieces_have_two_channels_or_more() -> None:
    for channels in range(4, 100):
        pieces = [range(channels)[piece] for piece in FewChannelsAtATime().pieces(channels)]
        assert sum(map(len, pieces)) == channels
        assert min(map(len, pieces)) >= 2
        assert len(pieces) == min(8, channels // 2)


def test_norms_of_another_kernel_are_not_split(shelf: Shelf) -> None:
    parts = Parts(shelf, lambda tensor: True)
    images = torch.randn(5, 8, 6, 6)
    kinds: list[tuple[torch.nn.Module, Tensor]] = [
        (torch.nn.BatchNorm1d(8), torch.randn(5, 8)),
        (torch.nn.BatchNorm2d(8), torch.randn(5, 8, 1, 1)),
        (torch.nn.BatchNorm2d(8), images.contiguous(memory_format=torch.channels_last)),
        (torch.nn.BatchNorm2d(3), images[:, :3].contiguous()),
    ]
    for layer, values in kinds:
        run_out(Scarce("native_batch_norm_backward", 1), parts, lambda: gradients(layer, values))  # noqa: B023


def test_the_input_is_out_of_memory_meanwhile(shelf: Shelf) -> None:
    sizes: list[tuple[int, int]] = []
    layer, values = torch.nn.Conv2d(4, 4, 3), torch.randn(2, 4, 9, 9)

    class Look(Scarce):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            if self.name in str(func) and not self.times:
                sizes.append((sum(args[-1]), args[1].untyped_storage().nbytes()))
            return super().__torch_dispatch__(func, types, args, kwargs)

    inputs: list[Tensor] = []

    def note(tensor: Tensor) -> bool:
        inputs.append(tensor)
        return True

    with Look("convolution_backward", 2), Relief(lambda: True, Parts(shelf, note)):
        gradients(layer, values)
    (of_input, stand_in), (of_weights, whole) = sizes
    assert (of_input, of_weights) == (1, 2)
    assert stand_in == whole == inputs[0].untyped_storage().nbytes()


def run_out(scarce: Scarce, parts: Parts | None, call: Callable[[], object]) -> None:
    with pytest.raises(RuntimeError, match=NO_MEMORY), scarce, Relief(lambda: False, parts):
        call()
    assert scarce.times == 0


def test_what_is_not_split_says_what_is_missing(shelf: Shelf) -> None:
    layer, values = LAYERS["plain"][0], torch.randn(LAYERS["plain"][1])
    for none in (None, Parts(shelf, lambda tensor: False)):
        run_out(Scarce("convolution_backward", 1), none, lambda: gradients(layer, values))
    parts = Parts(shelf, lambda tensor: True)
    run_out(Scarce("convolution_backward", 2), parts, lambda: gradients(layer, values))


def test_one_gradient_alone_is_not_split(shelf: Shelf) -> None:
    layer, values = LAYERS["plain"][0], torch.randn(LAYERS["plain"][1])
    parts = Parts(shelf, lambda tensor: True)
    run_out(Scarce("convolution_backward", 1), parts, lambda: layer(values).sum().backward())


def test_without_disk_the_error_is_that_of_the_operation(shelf: Shelf) -> None:
    layer, values = LAYERS["plain"][0], torch.randn(LAYERS["plain"][1])
    parts = Parts(shelf, lambda tensor: True)
    with files_no_larger_than(4096):
        run_out(Scarce("convolution_backward", 2), parts, lambda: gradients(layer, values))


def test_a_shelf_gives_back_what_it_was_given(shelf: Shelf) -> None:
    values = torch.randn(3, 5).t()
    copy, part = values.clone(), values[1:]
    with shelf.without(values):
        assert values.untyped_storage().nbytes() == 0
    assert torch.equal(values, copy)
    assert torch.equal(part, copy[1:])
    with pytest.raises(KeyError), shelf.without(values):
        raise KeyError
    assert torch.equal(values, copy)


def test_a_shelf_without_room_leaves_the_tensor(shelf: Shelf) -> None:
    values = torch.arange(5000)
    with files_no_larger_than(4096), pytest.raises(NoDisk), shelf.without(values):
        pass
    assert torch.equal(values, torch.arange(5000))


def test_what_cannot_be_read_back_is_an_error_and_no_content(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operation that is run again on such memory would give wrong gradients."""
    layer, values = LAYERS["plain"][0], torch.randn(LAYERS["plain"][1])
    held: list[Tensor] = []

    def fail(*_: object) -> None:
        raise SpillFailed("the spill file cannot be read")

    def note(tensor: Tensor) -> bool:
        held.append(tensor)
        return True

    monkeypatch.setattr(SpillFile, "read", fail)
    relief = Relief(lambda: False, Parts(shelf, note))
    with pytest.raises(SpillFailed), Scarce("convolution_backward", 1), relief:
        gradients(layer, values)
    assert held[0].untyped_storage().nbytes() == 0


def test_memory_that_has_two_names_is_not_set_aside(shelf: Shelf) -> None:
    """A tracker's images and templates are made by one network; and a gradient may be what was saved."""
    parts, layer = Parts(shelf, lambda tensor: True), torch.nn.Conv2d(3, 4, 3, padding=1)
    images = torch.randn(3, 3, 9, 9)

    def compare() -> None:
        found = layer(images)
        torch.nn.functional.conv2d(found[1:], found[:1, :, :5, :5]).sum().backward()

    run_out(Scarce("convolution_backward", 1), parts, compare)
    gradient = torch.randn(2, 4, 5, 5)
    arguments = (gradient, gradient, torch.randn(4, 4, 1, 1), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    assert not parts.can_split(torch.ops.aten.convolution_backward.default, (*arguments, [True, True, False]))


def test_what_could_not_be_brought_back_is_not_taken_for_content() -> None:
    holding = Holding(torch.zeros(2048), 1, (0, 0), deque())
    assert not holding.changed
    assert holding.tensor is not None
    holding.tensor.untyped_storage().resize_(0)
    assert holding.changed


def test_a_tensor_without_content_has_the_shape_and_reads_as_zeros() -> None:
    values = torch.randn(4, 6)[1:, 2:].t()
    found = without_content(values)
    assert (found.shape, found.stride(), found.dtype) == (values.shape, values.stride(), values.dtype)
    assert not found.any()
