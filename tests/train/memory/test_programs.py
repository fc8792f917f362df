"""Programs with tensors of every kind: what plain training takes is taken, with the same gradients; what it
refuses is refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

import headwater as hw
from headwater.errors import SavedTensorChanged
from headwater.train.memory.lineage import Lineage
from headwater.train.memory.operators import kind_of
from headwater.train.memory.replay import _sums, check_digest, take_digest
from headwater.train.memory.streams import Clock, Streams

ROWS, WIDTH, LAYERS = 64, 128, 6
SAVED = 4 * ROWS * WIDTH
WAYS: dict[str, dict[str, bool]] = {"both": {}, "swap": {"recompute": False}, "recompute": {"swap": False}}


class Deep(nn.Module):
    """A row of layers with something done after each."""

    def __init__(self, then: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.then = then

    def forward(self, values: Tensor) -> Tensor:
        for layer in self.layers:
            values = self.then(layer(values))
        return values


def gradients(net: nn.Module, inputs: Tensor) -> list[Tensor]:
    net.zero_grad(set_to_none=True)
    net(inputs).abs().square().mean().backward()
    return [weight.grad.clone() for weight in net.parameters() if weight.grad is not None]


def assert_as_plain(net: nn.Module, inputs: Tensor, budget: int, **ways: bool) -> hw.MemoryReport:
    plain = gradients(net, inputs)
    with hw.memory_budget(budget, device="cpu", **ways) as context:
        for _ in range(5):
            assert all(map(torch.equal, gradients(net, inputs), plain))
        return context.report()


def halved_as_lists_are(values: Tensor) -> Tensor:
    found = values.exp()
    with torch.no_grad():
        torch._foreach_mul_([found], 0.5)
    return found


@pytest.mark.parametrize("ways", WAYS)
@pytest.mark.parametrize("budget", [2**30, 10 * SAVED])
def test_tensors_that_are_changed_as_a_list_are_told_in_every_iteration(ways: str, budget: int) -> None:
    net, inputs = Deep(halved_as_lists_are), torch.randn(ROWS, WIDTH)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        gradients(net, inputs)
    with hw.memory_budget(budget, device="cpu", **WAYS[ways]):
        for _ in range(6):
            with pytest.raises(SavedTensorChanged):
                gradients(net, inputs)


def test_a_step_of_the_optimiser_between_two_backward_passes_is_told() -> None:
    net, inputs = Deep(torch.tanh), torch.randn(ROWS, WIDTH)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1, foreach=True)
    with hw.memory_budget("1GiB", device="cpu"):
        loss = net(inputs).sum()
        loss.backward(retain_graph=True)
        optimiser.step()
        with pytest.raises(SavedTensorChanged):
            loss.backward()


def test_lists_that_are_written_count_as_without_a_budget() -> None:
    def versions() -> list[int]:
        values = [torch.ones(4) for _ in range(2)]
        torch._foreach_add_(values, [torch.ones(4)] * 2)
        torch.split_copy(torch.ones(8), 4, out=values)
        return [one._version for one in values]

    class Counting(nn.Module):
        def forward(self, inputs: Tensor) -> Tensor:
            self.seen = versions()
            return inputs * 2

    net = Counting()
    with hw.memory_budget("1GiB", device="cpu"):
        net(torch.ones(4, requires_grad=True)).sum().backward()
    assert net.seen == versions()


class Logged(Deep):
    """Looks at what it then changes in place, and never goes back through that look."""

    def forward(self, values: Tensor) -> Tensor:
        self.norms = []
        for layer in self.layers:
            values = layer(values) * 1.0
            self.norms.append(values.norm())
            values = self.then(values)
        return values


@pytest.mark.parametrize("ways", WAYS)
@pytest.mark.parametrize("held", [7, 4])
def test_what_was_changed_and_is_not_asked_for_leaves_like_anything(held: int, ways: str) -> None:
    net = Logged(torch.relu_)
    report = assert_as_plain(net, torch.randn(ROWS, WIDTH), held * SAVED, **WAYS[ways])
    assert report.peak <= held * SAVED


class Graph(nn.Module):
    def __init__(self, neighbours: Tensor) -> None:
        super().__init__()
        self.neighbours, self.inner = neighbours, nn.Linear(WIDTH, WIDTH)

    def forward(self, values: Tensor) -> Tensor:
        return torch.sparse.mm(self.neighbours, self.inner(values))


@pytest.mark.parametrize("ways", WAYS)
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_sparse_tensors_are_left_alone(layout: torch.layout, ways: str) -> None:
    near = (torch.rand(ROWS, ROWS) < 0.1).float()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch calls one of them a beta
        assert_as_plain(Graph(near.to_sparse(layout=layout)), torch.randn(ROWS, WIDTH), 2**30, **WAYS[ways])


class Taught(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.teacher, self.pupil = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, values: Tensor) -> Tensor:
        with torch.inference_mode():
            told = self.teacher(values)
        return self.pupil(values) - told


@pytest.mark.parametrize("ways", WAYS)
def test_tensors_of_inference_are_left_alone(ways: str) -> None:
    assert_as_plain(Taught(), torch.randn(ROWS, WIDTH), 2**30, **WAYS[ways])


@pytest.mark.parametrize("ways", WAYS)
def test_frozen_weights_are_no_part_of_what_is_held(ways: str) -> None:
    """Autograd saves a view of them."""
    trunk = [layer for _ in range(4) for layer in (nn.Linear(512, 512), nn.ReLU())]
    net = nn.Sequential(nn.Linear(32, 512), *trunk, nn.Linear(512, 4))
    for layer in trunk:
        layer.requires_grad_(False)
    with hw.memory_budget(2**18, device="cpu", **WAYS[ways]) as budget:
        net(torch.randn(16, 32)).sum().backward()
        assert budget.report().peak_before == 4 * 4 * 16 * 512  # what each ReLU gave


class Turned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.randn(64, 64, dtype=torch.cfloat) * 0.1)

    def forward(self, values: Tensor) -> Tensor:
        for _ in range(5):
            values = torch.exp((values * self.weights).conj().tanh() * 0.1)
        return values


@pytest.mark.parametrize("ways", WAYS)
def test_nothing_is_made_again_of_a_conjugate_that_is_only_a_mark(ways: str) -> None:
    inputs = torch.randn(8, 64, 64, dtype=torch.cfloat)
    whole = 8 * 64 * 64 * 8
    report = assert_as_plain(Turned(), inputs, 8 * whole, **WAYS[ways])
    assert report.peak <= 8 * whole < report.peak_before
    assert ways != "recompute" or report.recomputed > 0


def squared(values: Tensor) -> Tensor:
    return torch.tanh(values.pow_(2).mul_(0.1))


def narrowed(values: Tensor) -> Tensor:
    return torch.exp(torch.tanh(values.mul_(torch.full((WIDTH,), 0.3, dtype=torch.double))))


@pytest.mark.parametrize(("then", "held"), [(squared, 5), (narrowed, 10)])
@pytest.mark.parametrize("ways", WAYS)
def test_operations_in_place_are_made_again_as_they_were(
    then: Callable[[Tensor], Tensor], held: int, ways: str
) -> None:
    """What rounds its result to a narrower type has no equal that is not in place: it is not made again."""
    report = assert_as_plain(Deep(then), torch.randn(ROWS, WIDTH), held * SAVED, **WAYS[ways])
    assert report.peak <= held * SAVED < report.peak_before
    assert ways != "recompute" or report.recomputed > 0


def test_what_rounds_its_result_in_place_is_no_recipe() -> None:
    lineage, values = Lineage(Clock(Streams(torch.device("cpu")))), torch.randn(ROWS, WIDTH)

    def is_known() -> bool:
        node = lineage.node_of(values)
        assert node is not None
        return node.recipe is not None

    with lineage:
        values.mul_(torch.ones(WIDTH))
        assert is_known()
        values.mul_(torch.ones(WIDTH, dtype=torch.double))
        assert not is_known()
        values.masked_fill_(values > 0, 0.5)
        assert is_known()


def test_a_residual_that_is_added_in_place_under_autocast_is_made_again_rightly() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)

        def forward(self, values: Tensor) -> Tensor:
            found = self.inner(values)
            found += self.norm(values)
            return nn.functional.gelu(found)

    class Cast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.blocks = nn.Sequential(*(Block() for _ in range(5)))

        def forward(self, values: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return self.blocks(values).float()

    net, inputs = Cast(), torch.randn(ROWS, WIDTH)
    peak = assert_as_plain(net, inputs, 2**30).peak_before
    for share in (0.8, 0.6):
        assert_as_plain(net, inputs, int(share * peak), swap=False)


def test_every_operation_in_place_has_its_equal_with_the_same_arguments() -> None:
    for name in ("add", "mul", "pow", "clamp", "div", "sub", "masked_fill"):
        packet = getattr(torch.ops.aten, f"{name}_")
        for overload in packet.overloads():
            changing = getattr(packet, overload)
            equal = kind_of(changing)[1]
            if equal is not None:
                assert [str(one.type) for one in equal._schema.arguments] == [
                    str(one.type) for one in changing._schema.arguments
                ]
    assert kind_of(torch.ops.aten.pow_.Scalar)[1] is torch.ops.aten.pow.Tensor_Scalar


def test_an_interrupt_that_is_caught_leaves_no_mode_on() -> None:
    class Interrupted(nn.Module):
        now = True

        def forward(self, values: Tensor) -> Tensor:
            if self.now:
                raise KeyboardInterrupt
            return values

    stop = Interrupted()
    net = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)), stop, nn.Linear(WIDTH, WIDTH))
    inputs = torch.randn(ROWS, WIDTH)
    with hw.memory_budget("1GiB", device="cpu"):
        with pytest.raises(KeyboardInterrupt):
            net(inputs)
        stop.now = False
        for _ in range(6):
            net(inputs).sum().backward()
        assert torch._C._len_torch_dispatch_stack() == 0


def test_zeros_that_are_only_a_mark_are_left_alone() -> None:
    net, inputs = Deep(torch.tanh), torch.randn(ROWS, WIDTH)

    def tangents() -> list[Tensor]:
        net.zero_grad(set_to_none=True)
        with forward_ad.dual_level():
            found = net(forward_ad.make_dual(inputs, torch.ones_like(inputs)))
            forward_ad.unpack_dual(found).tangent.sum().backward()
        return [weight.grad.clone() for weight in net.parameters() if weight.grad is not None]

    plain = tangents()
    with hw.memory_budget(4 * SAVED, device="cpu", recompute=False):
        for _ in range(3):
            assert all(map(torch.equal, tangents(), plain))


def test_what_numpy_has_written_is_not_lost_when_a_tensor_is_made_again() -> None:
    def edited(values: Tensor) -> Tensor:
        found = torch.relu(values)
        found.detach().numpy()[3, 5] = 7.0
        return found

    with hw.memory_budget(5 * SAVED, device="cpu", swap=False), pytest.raises(SavedTensorChanged):
        gradients(Deep(edited), torch.randn(ROWS, WIDTH))


@pytest.mark.parametrize("size", [1, 7, 8, 9, 71, 4096, 65537])
def test_a_digest_tells_every_byte_and_its_place(size: int) -> None:
    torch.manual_seed(size)
    whole = torch.randint(0, 255, (size,), dtype=torch.uint8)
    digest, sums = take_digest(whole), _sums(whole)
    check_digest(whole.clone(), digest, size)
    for place in {0, size // 2, size - 1}:
        other = whole.clone()
        other[place] += 1
        assert not torch.equal(_sums(other), sums)
        with pytest.raises(SavedTensorChanged):
            check_digest(other, digest, size)
    turned = whole.flip(0)
    assert torch.equal(turned, whole) or not torch.equal(_sums(turned), sums)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_model_trains_as_it_does_without_a_budget(backend: str) -> None:
    net, inputs = torch.compile(Deep(torch.tanh), backend=backend), torch.randn(ROWS, WIDTH)
    assert isinstance(net, nn.Module)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of hooks that are there for all modules
        report = assert_as_plain(net, inputs, 4 * SAVED)
        torch._dynamo.reset()
    assert 0 < report.peak <= 4 * SAVED < report.peak_before
