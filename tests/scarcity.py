"""A stand-in for an allocator that has no memory left."""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode

NO_MEMORY = "DefaultCPUAllocator: can't allocate memory"


class Scarce(TorchDispatchMode):
    """Lets an operation run, and then finds no memory for what it made, so many times."""

    def __init__(self, name: str, times: int, text: str = NO_MEMORY) -> None:
        super().__init__()
        self.name, self.times, self.text = name, times, text

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        found = func(*args, **(kwargs or {}))
        if self.name in str(func) and self.times:
            self.times -= 1
            raise RuntimeError(self.text)
        return found
