"""Networks of every kind that a memory budget must not change, and what training them gives."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

Made = tuple[nn.Module, Tensor]
Results = dict[str, Tensor]


class Residual(nn.Module):
    """Two convolutions with an in-place ReLU, and a way around them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.last = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, images: Tensor) -> Tensor:
        inner = self.last(self.second(self.relu(self.norm(self.first(images)))))
        return self.relu(inner + images)


class Recurrent(nn.Module):
    """An LSTM cell, unrolled step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(16, 64)
        self.head = nn.Linear(64, 4)

    def forward(self, rows: Tensor) -> Tensor:
        state = None
        for step in rows.unbind(1):
            state = self.cell(step, state)
        assert state is not None
        return self.head(state[0])


class Last(nn.Module):
    """The last step of what an LSTM gives."""

    def forward(self, found: tuple[Tensor, object]) -> Tensor:
        return found[0][:, -1]


class Swish(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        return values * torch.sigmoid(values) * 0.5 + torch.cat([values, values], 1).chunk(2, 1)[0]


def _ending(width: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 4)]


def convolutional() -> Made:
    block = [nn.Conv2d(16, 16, 3, padding=1), nn.GELU(), nn.GroupNorm(4, 16)]
    layers = [nn.Conv2d(3, 16, 3, padding=1), *block, nn.MaxPool2d(2), *block, nn.AvgPool2d(2), nn.SiLU()]
    return nn.Sequential(*layers, *_ending(16)), torch.randn(4, 3, 16, 16)


def residual() -> Made:
    layers = [nn.Conv2d(3, 16, 3, padding=1), *(Residual(16) for _ in range(4))]
    return nn.Sequential(*layers, *_ending(16)), torch.randn(4, 3, 16, 16)


def dropping() -> Made:
    block = [nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(inplace=True), nn.Dropout(0.3), nn.Dropout2d(0.2)]
    return nn.Sequential(nn.Conv2d(3, 16, 1), *block, *block, *_ending(16)), torch.randn(4, 3, 16, 16)


def transformer() -> Made:
    layers = [nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, activation="gelu") for _ in range(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 16, 4)), torch.randn(4, 16, 64)


def lstm() -> Made:
    return nn.Sequential(nn.LSTM(16, 64, 2, batch_first=True), Last(), nn.Linear(64, 4)), torch.randn(
        8, 12, 16
    )


def unrolled() -> Made:
    return Recurrent(), torch.randn(32, 12, 16)


def home_made() -> Made:
    layers = [nn.Conv2d(3, 16, 3, padding=1), Swish(), nn.Conv2d(16, 16, 3, padding=1), Swish()]
    return nn.Sequential(*layers, *_ending(16)), torch.randn(4, 3, 16, 16)


NETS: dict[str, Callable[[], Made]] = {
    made.__name__: made
    for made in (convolutional, residual, dropping, transformer, lstm, unrolled, home_made)
}


def make(name: str) -> Made:
    torch.manual_seed(0)
    return NETS[name]()


def loss_of(net: nn.Module, inputs: Tensor) -> Tensor:
    return cross_entropy(net(inputs), torch.arange(len(inputs)) % 4)


def train(
    name: str,
    *,
    steps: int = 5,
    around: AbstractContextManager[object] | None = None,
    loss: Callable[[nn.Module, Tensor], Tensor] = loss_of,
) -> Results:
    """Losses, and what the net and its gradients are after some steps inside of a context."""
    net, inputs = make(name)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    losses = []
    torch.manual_seed(1)
    with around or nullcontext():
        for _ in range(steps):
            optimizer.zero_grad()
            found = loss(net, inputs)
            found.backward()
            optimizer.step()
            losses.append(found.detach())
    gradients = {f"gradient of {key}": value.grad for key, value in net.named_parameters()}
    return {
        "losses": torch.stack(losses),
        **net.state_dict(),
        **{k: v for k, v in gradients.items() if v is not None},
    }


def assert_equal(found: Results, expected: Results) -> None:
    """Bit for bit."""
    assert found.keys() == expected.keys()
    different = [name for name, value in expected.items() if not torch.equal(found[name], value)]
    assert not different
