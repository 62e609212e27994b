"""Randomness derived from (seed, purpose, step), so that a resumed run draws what it would have."""

from __future__ import annotations

import hashlib
import random


def derive(seed: int, purpose: str, step: int) -> int:
    """A seed in [0, 2**31) for one purpose at one step."""
    digest = hashlib.blake2b(f"{seed}:{purpose}:{step}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % 2**31


def examples_of_step(seed: int, *, step: int, count: int, size: int) -> tuple[int, ...]:
    """Which ``count`` examples step ``step`` (from 0) uses, of a task with ``size`` examples.

    Every pass over the task is a new permutation; a step may span two passes.
    """
    first = step * count
    chosen = []
    orders: dict[int, list[int]] = {}
    for position in range(first, first + count):
        epoch, place = divmod(position, size)
        if epoch not in orders:
            orders[epoch] = list(range(size))
            random.Random(derive(seed, "order", epoch)).shuffle(orders[epoch])
        chosen.append(orders[epoch][place])
    return tuple(chosen)
