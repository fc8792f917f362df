"""Recomputing: what a tensor is made of again, how long that takes, and how that changes with each choice."""

from __future__ import annotations

from collections.abc import Collection

from headwater.plan.memory.record import AccessRecord


def chain(record: AccessRecord, place: int, chosen: Collection[int]) -> list[int] | None:
    """What must be made again to have this tensor, parents first, itself last.

    The walk ends at tensors that autograd keeps anyway, unless they were `chosen` to be recomputed too. None
    if it comes to one that nobody keeps and nothing can make.
    """
    order: list[int] = []
    done: set[int] = set()
    stack: list[tuple[int, bool]] = [(place, False)]
    while stack:
        current, ready = stack.pop()
        if ready:
            order.append(current)
            continue
        if current in done:
            continue
        done.add(current)
        parents = record.tensors[current].parents
        if parents is None:
            return None
        stack.append((current, True))
        stack += [(parent, False) for parent in parents if not _kept(record, parent, chosen)]
    return order


def sources(record: AccessRecord, place: int, chosen: Collection[int]) -> set[int] | None:
    """The kept tensors that the chain begins with."""
    made = chain(record, place, chosen)
    if made is None:
        return None
    own = set(made)
    return {parent for step in made for parent in record.tensors[step].parents or () if parent not in own}


def recompute_seconds(
    record: AccessRecord, place: int, chosen: Collection[int], *, collective: bool = True
) -> float | None:
    """What choosing this tensor adds, given those already chosen; None: it cannot be recomputed.

    Collective recomputation keeps what it passes through and is asked for later, so a tensor is made once;
    without it, once more for every chosen tensor that passes through it.
    """
    made = chain(record, place, chosen)
    if made is None:
        return None
    if collective:
        return sum(record.tensors[step].seconds for step in made if step == place or step not in chosen)
    own = sum(record.tensors[step].seconds for step in made)
    again = sum(1 for other in chosen if place in (sources(record, other, chosen) or ()))
    return own * (1 + again)


def _kept(record: AccessRecord, place: int, chosen: Collection[int]) -> bool:
    return bool(record.tensors[place].saved) and place not in chosen
