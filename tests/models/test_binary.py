"""A binary proxy: its bits, that it learns, and that its graph is it to the bit.

What needs Brevitas runs where the extra `fpga` is installed; `make test-fpga` makes such a place and runs it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from headwater.errors import MissingExtra, ModelError, WrongUse
from headwater.models.binary import binary_proxy, export_qonnx, packed_bytes
from headwater.models.layers import probe
from pages import DOCS, run_page

SIZE, CLASSES, WIDTH = 16, 4, 4


@pytest.fixture(scope="module")
def brevitas() -> None:
    pytest.importorskip("brevitas", reason="the extra fpga is not installed: it wants an older setuptools")


@pytest.fixture(scope="module")
def trained(brevitas: None) -> nn.Module:
    """Enough steps for scales to be learned, no longer collected; images of four colours."""
    torch.manual_seed(0)
    net = binary_proxy(CLASSES, width=WIDTH)
    optimiser = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(120):
        images, labels = coloured(8)
        loss = F.cross_entropy(net(images), labels)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return net


def coloured(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.randint(0, CLASSES, (count,))
    colours = torch.tensor([[1.0, -1, -1], [-1, 1, -1], [-1, -1, 1], [1, 1, 1]])
    return colours[labels][:, :, None, None] + 0.5 * torch.randn(count, 3, SIZE, SIZE), labels


def quantised(net: nn.Module) -> dict[str, list[nn.Module]]:
    """Layers with weights, and what makes activations, by the name of their class."""
    found: dict[str, list[nn.Module]] = {}
    for part in net.modules():
        found.setdefault(type(part).__name__, []).append(part)
    return found


def outputs(net: nn.Module, part: nn.Module) -> list[torch.Tensor]:
    """What a part of the net makes of four images, each time that it is called."""
    seen: list[torch.Tensor] = []
    hook = part.register_forward_hook(
        lambda _, given, made: seen.append(made.value if hasattr(made, "value") else made)
    )
    with torch.no_grad():
        net.eval()(coloured(4)[0])
    hook.remove()
    return seen


@pytest.mark.parametrize("package", ["brevitas", "brevitas.quant"])
def test_without_brevitas_the_extra_is_named(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # type: ignore[arg-type]
    with pytest.raises(MissingExtra, match=r"needs brevitas\S*; pip install 'headwater\[fpga\]'"):
        binary_proxy(10)


@pytest.mark.parametrize("package", ["brevitas", "onnxoptimizer", "qonnx"])
def test_without_what_exports_nothing_is_written(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)  # type: ignore[arg-type]
    net = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with pytest.raises(MissingExtra, match=r"the export needs \S+; pip install 'headwater\[fpga\]'"):
        export_qonnx(net, tmp_path / "net.onnx", SIZE)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("classes", "width"), [(0, 8), (10, 0)])
def test_a_net_of_nothing_is_refused(classes: int, width: int) -> None:
    with pytest.raises(WrongUse, match=f"classes={classes} and width={width} must be at least 1"):
        binary_proxy(classes, width=width)


def test_weights_have_one_bit_but_at_the_ends(trained: nn.Module) -> None:
    first, *between = quantised(trained)["QuantConv2d"]
    (last,) = quantised(trained)["QuantLinear"]
    assert len(between) == 8
    for layer in between:
        weights = layer.quant_weight().value
        assert weights.unique().tolist() == [-0.0625, 0.0625]
    for layer in (first, last):
        whole = layer.quant_weight()
        assert int(whole.bit_width) == 8
        assert len(whole.value.unique()) > 16
        assert whole.int().abs().max() <= 127


@pytest.mark.parametrize(("kind", "bits"), [("QuantReLU", {2}), ("QuantIdentity", {4, 8})])
def test_activations_have_no_more_values_than_bits(trained: nn.Module, kind: str, bits: set[int]) -> None:
    found = set()
    for part in quantised(trained)[kind]:
        width = int(part.act_quant.bit_width())
        values = torch.cat([made.reshape(-1) for made in outputs(trained, part)]).unique()
        assert 2 <= len(values) <= 2**width
        found.add(width)
    assert found == bits


def test_all_scales_are_powers_of_two(trained: nn.Module) -> None:
    found = quantised(trained)
    scales = [layer.quant_weight().scale for kind in ("QuantConv2d", "QuantLinear") for layer in found[kind]]
    scales += [part.act_quant.scale() for kind in ("QuantReLU", "QuantIdentity") for part in found[kind]]
    exponents = torch.log2(torch.stack([scale.detach().reshape(()) for scale in scales]))
    assert len(exponents) == 21
    torch.testing.assert_close(exponents, exponents.round(), rtol=0, atol=0)


def test_it_learns(trained: nn.Module) -> None:
    images, labels = coloured(200)
    with torch.no_grad():
        right = (trained.eval()(images).argmax(dim=1) == labels).float().mean()
    assert right > 0.9


@pytest.mark.parametrize("size", [SIZE, 21])
def test_the_graph_gives_the_logits_of_torch(trained: nn.Module, tmp_path: Path, size: int) -> None:
    from qonnx.core.modelwrapper import ModelWrapper
    from qonnx.core.onnx_exec import execute_onnx

    trained.train()
    before = {name: value.clone() for name, value in trained.state_dict().items()}
    export_qonnx(trained, tmp_path / "proxy.onnx", size)
    assert trained.training
    assert [path.name for path in tmp_path.iterdir()] == ["proxy.onnx"]
    for name, value in trained.state_dict().items():
        assert torch.equal(value, before[name])
    graph = ModelWrapper(str(tmp_path / "proxy.onnx"))
    # not those that the export looks at
    images = 2 * torch.randn(6, 3, size, size, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        logits = trained.eval()(images).numpy()
    made = [execute_onnx(graph, {"images": image[None]})["logits"][0] for image in images.numpy()]
    np.testing.assert_array_equal(made, logits)
    assert len(np.unique(logits, axis=0)) == 6


def test_the_graph_says_its_bits(trained: nn.Module, tmp_path: Path) -> None:
    from qonnx.core.modelwrapper import ModelWrapper

    export_qonnx(trained, tmp_path / "proxy.onnx", SIZE)
    graph = ModelWrapper(str(tmp_path / "proxy.onnx"))
    kinds = [node.op_type for node in graph.graph.node]
    assert kinds.count("BipolarQuant") == 8
    assert "BatchNormalization" not in kinds
    bits = [int(graph.get_initializer(node.input[3])) for node in graph.get_nodes_by_op_type("Quant")]
    # images, features, and weights of both ends; two summands and two activations of each block; a bias
    assert sorted(bits) == [2] * 6 + [4] * 6 + [8] * 4 + [32]
    assert [value.name for value in graph.graph.input] == ["images"]


def test_a_graph_that_is_not_torch_to_the_bit_is_not_written(brevitas: None, tmp_path: Path) -> None:
    from brevitas import nn as layers

    torch.manual_seed(0)
    free = nn.Sequential(
        nn.Flatten(), layers.QuantLinear(3 * SIZE * SIZE, 7, bias=True)
    )  # its scale is any number
    with pytest.raises(ModelError, match=r"differs from torch by .* of 4 images of noise; .* power of two"):
        export_qonnx(free, tmp_path / "free.onnx", SIZE)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("affine", [False, True])
def test_batch_norms_of_all_kinds_are_in_the_graph(brevitas: None, tmp_path: Path, affine: bool) -> None:
    from qonnx.core.modelwrapper import ModelWrapper
    from qonnx.core.onnx_exec import execute_onnx

    torch.manual_seed(0)
    norm = nn.BatchNorm2d(3, affine=affine, momentum=1.0)
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    norm(3 * torch.randn(50, 3, SIZE, SIZE) + 2)
    net = nn.Sequential(norm, nn.AdaptiveMaxPool2d(1), nn.Flatten())
    export_qonnx(net, tmp_path / "norm.onnx", SIZE)
    image = torch.randn(1, 3, SIZE, SIZE)
    found = execute_onnx(ModelWrapper(str(tmp_path / "norm.onnx")), {"images": image.numpy()})["logits"]
    np.testing.assert_allclose(found, net.eval()(image).detach(), rtol=1e-5, atol=1e-6)


def test_a_net_that_looks_at_the_whole_batch_is_not_written(brevitas: None, tmp_path: Path) -> None:
    norm = nn.BatchNorm2d(3, track_running_stats=False)
    net = nn.Sequential(norm, nn.AdaptiveMaxPool2d(1), nn.Flatten())
    with pytest.raises(ModelError, match="differs from torch by"):
        export_qonnx(net, tmp_path / "norm.onnx", SIZE)
    assert not list(tmp_path.iterdir())


def test_a_net_that_cannot_be_exported_runs_on(trained: nn.Module, tmp_path: Path) -> None:
    images = probe(2, (3, SIZE, SIZE))
    broken = nn.Sequential(trained, _NotInOnnx()).eval()
    with torch.no_grad():
        before = broken(images)
        with pytest.raises(ModelError, match="Brevitas cannot export the module: "):
            export_qonnx(broken, tmp_path / "broken.onnx", SIZE)
        assert torch.equal(broken(images), before)
    assert not list(tmp_path.iterdir())


class _NotInOnnx(nn.Module):
    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        return torch.linalg.eigvalsh(logits.T @ logits)[None].expand(len(logits), -1)


def test_bytes_are_those_of_packed_bits(trained: nn.Module) -> None:
    binary = (2 * 9 * 4 * 4) + (9 * 4 * 8 + 9 * 8 * 8 + 4 * 8) + (9 * 8 * 16 + 9 * 16 * 16 + 8 * 16)
    ends, biases = 27 * 4 + 16 * CLASSES, CLASSES
    norms = 4 + 2 * 4 + 3 * 8 + 3 * 16
    assert packed_bytes(trained) == binary // 8 + ends + 4 * biases + 8 * norms


def test_the_page_runs(brevitas: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = run_page(DOCS / "how-to" / "fpga.md")
    assert (tmp_path / "proxy.onnx").exists()
    assert names["found"].samples > 0
