"""What a store may spend: a queue with priorities, memory, cores. Clocks are arguments; no I/O here."""

from headwater.engine.budget.allowance import Budget
from headwater.engine.budget.cores import Cores, Reservation
from headwater.engine.budget.fairness import PRIORITIES
from headwater.engine.budget.turnstile import Busy, Gone, Turn, Turnstile

__all__ = ["PRIORITIES", "Budget", "Busy", "Cores", "Gone", "Reservation", "Turn", "Turnstile"]
