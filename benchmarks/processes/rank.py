"""One rank of a training run in a process of its own, which averages gradients with the others by gloo.

    rank.py RANK WORLD MEETING SETTINGS     MEETING is a file that is not there yet, the same for all ranks

SETTINGS is JSON, see `timed_training.Settings`. Prints one line of JSON: what each epoch took. The first rank
judges the network for all.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, replace
from datetime import timedelta

import torch
from torch import distributed, nn

from timed_training import Settings, train

_PATIENCE = timedelta(minutes=5)


def average(network: nn.Module) -> None:
    """The mean of all ranks' gradients, sent as one vector."""
    gradients = [each.grad for each in network.parameters() if each.grad is not None]
    flat = torch.cat([each.flatten() for each in gradients])
    distributed.all_reduce(flat)
    flat /= distributed.get_world_size()
    parts = flat.split([each.numel() for each in gradients])  # type: ignore[no-untyped-call]
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))


def main(rank: int, world: int, meeting: str, settings: Settings) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # gloo prints, too
    place = f"file://{meeting}"
    distributed.init_process_group("gloo", init_method=place, rank=rank, world_size=world, timeout=_PATIENCE)
    distributed.barrier()
    epochs = train(replace(settings, test="") if rank else settings, average)
    print(json.dumps([asdict(epoch) for epoch in epochs]), file=answers, flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Settings(**json.loads(sys.argv[4])))
