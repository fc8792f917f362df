"""Small image classifiers for tests: a plain one, one with skip connections, some that are hard to cut."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

SIZE = 32
CLASSES = ("red", "green", "blue", "grey", "dark")


def seeded(seed: int = 0) -> None:
    torch.manual_seed(seed)


def plain(classes: int = len(CLASSES)) -> nn.Sequential:
    """Convolutions, batch norms with statistics that matter, and a linear layer at the end."""
    seeded()
    model = nn.Sequential(
        *_block(3, 8, stride=2),
        *_block(8, 16, stride=1),
        *_block(16, 24, stride=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(24, classes),
    )
    _stir(model)
    return model.eval()


def _block(before: int, after: int, *, stride: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU6()


def _stir(model: nn.Module) -> None:
    """Statistics as after training, so that a batch norm that is left out is seen."""
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean = torch.rand(layer.num_features) - 0.5
            layer.running_var = torch.rand(layer.num_features) + 0.5
            nn.init.uniform_(layer.weight, 0.5, 1.5)
            nn.init.uniform_(layer.bias, -0.5, 0.5)


class Block(nn.Module):
    """Two convolutions with a connection past them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.second(torch.relu(self.norm(self.first(x)))))


class Residual(nn.Module):
    """Named as torchvision's are. It asks its input for the size of the batch, and has a switch."""

    def __init__(self, classes: int = len(CLASSES)) -> None:
        super().__init__()
        seeded()
        self.stem = nn.Conv2d(3, 8, 3, 2, 1)
        self.relu = nn.ReLU()
        self.layer1 = nn.Sequential(Block(8), Block(8))
        self.layer2 = nn.Sequential(Block(8))
        self.pool = nn.AdaptiveAvgPool2d(2)
        self.dropout = nn.Dropout(0.5)
        self.fc = nn.Linear(32, classes)
        _stir(self)

    def forward(self, x: torch.Tensor, scale: float | None = None) -> torch.Tensor:
        count = x.size(0)
        x = self.layer1(self.relu(self.stem(x)))
        x = self.relu(self.pool(self.layer2(x)))
        x = self.fc(self.dropout(x.view(count, -1)))
        return x if scale is None else x * scale


class Attentive(nn.Module):
    """Patches of the image that look at each other, and their mean; norms and biases are not what they begin
    as."""

    def __init__(self, classes: int = len(CLASSES)) -> None:
        super().__init__()
        seeded()
        self.patches = nn.Conv2d(3, 16, 8, 8)
        self.places = nn.Parameter(torch.randn(1, (SIZE // 8) ** 2, 16))
        self.first, self.second = nn.LayerNorm(16), nn.LayerNorm(16)
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
        self.between = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.fc = nn.Linear(16, classes)
        for name, parameter in self.named_parameters():
            if "bias" in name or "first" in name or "second" in name:
                nn.init.uniform_(parameter, 0.5, 1.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.places
        known = self.first(x)
        x = x + self.attention(known, known, known, need_weights=False)[0]
        x = x + self.between(self.second(x))
        logits: torch.Tensor = self.fc(x.mean(1))
        return logits


class Encoder(nn.Module):
    """The same by torch's own layer, with a token of its own whose features are the image's."""

    def __init__(self, classes: int = len(CLASSES)) -> None:
        super().__init__()
        seeded()
        self.patches = nn.Conv2d(3, 16, 8, 8)
        self.token = nn.Parameter(torch.randn(1, 1, 16))
        layer = nn.TransformerEncoderLayer(16, 4, 32, activation="gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.fc = nn.Linear(16, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), 1)
        logits: torch.Tensor = self.fc(self.encoder(x)[:, 0])
        return logits


class Between(nn.Module):
    """A convolution and a linear layer, and what is given between them: (n, 16, 8, 8) to (n, 16, a, b)."""

    def __init__(self, work: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        seeded()
        self.body, self.fc = nn.Conv2d(3, 16, 4, 4), nn.Linear(16, len(CLASSES))
        self._work = work

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.fc(self._work(self.body(x)).mean((2, 3)))
        return logits


class LongSkip(nn.Module):
    """The image's mean is added after everything else: no cut inside is a cut."""

    def __init__(self) -> None:
        super().__init__()
        seeded()
        self.body = nn.Conv2d(3, 3, 3, padding=1)
        self.fc = nn.Linear(3, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.body(x).mean((2, 3)) + x.mean((2, 3)))


class Picky(nn.Module):
    """Looks at the size of what it gets, which cannot be traced, and is a fixed function all the same."""

    def __init__(self) -> None:
        super().__init__()
        self.body = plain()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[-1] != SIZE:
            raise ValueError(f"{x.shape[-1]} pixels")
        logits: torch.Tensor = self.body(x)
        return logits


class Moody(nn.Module):
    """What it does depends on the pixels."""

    def __init__(self) -> None:
        super().__init__()
        seeded()
        self.one, self.two = nn.Linear(3, 4), nn.Linear(3, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pooled = x.mean((2, 3))
        logits: torch.Tensor = self.one(pooled) if x.sum() > 0 else self.two(pooled)
        return logits * 2


class InPlace(nn.Module):
    """Writes to what its layers gave, as many do to save memory, and has one layer with two results."""

    def __init__(self) -> None:
        super().__init__()
        seeded()
        self.body, self.relu, self.twice = nn.Conv2d(3, 6, 3), nn.ReLU(inplace=True), Twice()
        self.fc = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one, two = self.twice(self.relu(self.body(x)))
        logits: torch.Tensor = self.fc((one + two).mean((2, 3)))
        return logits


class Twice(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        one, two = torch.chunk(torch.cat((x, x * x), 1), 2, 1)
        return one, two
