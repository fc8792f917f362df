"""A memory budget for training: what autograd keeps for backward stays within it, and results stay the same.

`plan.memory` decides which tensors stay, leave or are made again; here are the parts that touch torch: hooks
on saved tensors, the account of bytes, the spill file, the lineage of tensors, and feedback.
"""

from headwater.train.memory.batches import max_batch
from headwater.train.memory.budget import MemoryBudget, memory_budget
from headwater.train.memory.outcome import MemoryReport

__all__ = ["MemoryBudget", "MemoryReport", "max_batch", "memory_budget"]
