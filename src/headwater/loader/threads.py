"""Torch within the loader's threads."""

from __future__ import annotations

import threading

import torch

_lock = threading.Lock()


def use_one_core() -> None:
    """Let torch's kernels use one core in the calling thread, and leave every other thread as it was.

    The loader's threads already fill the cores; kernels that open a team of their own in each of them
    were seen to be thirty times slower on a busy machine. `torch.set_num_threads` sets the calling
    thread's team and the default of threads to come, so another thread sets the default back.
    """
    with _lock:  # or one thread would take another's 1 for the default
        default = torch.get_num_threads()
        torch.set_num_threads(1)
        restore = threading.Thread(target=torch.set_num_threads, args=(default,))
        restore.start()
        restore.join()
