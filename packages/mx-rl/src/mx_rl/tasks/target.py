"""The easiest task there is: say tokens from a given set. For tests of the loop itself."""

from __future__ import annotations

import random
from collections.abc import Sequence

from mx_rl.tasks.base import Answer, Example

_WORDS = ("sum", "grid", "sample", "learn", "bytes", "scale", "block", "what", "is", "the", "of")


class TargetTokens:
    """Reward: the share of a completion's tokens that are in ``tokens``; 0.0 for none at all."""

    def __init__(self, tokens: Sequence[int], *, size: int, seed: int) -> None:
        self._tokens = frozenset(tokens)
        self._seed = seed
        self.size = size

    def example(self, index: int) -> Example:
        words = random.Random(f"{self._seed}:target:{index}").choices(_WORDS, k=4)
        return Example(index, " ".join(words))

    def score(self, example: Example, answer: Answer) -> float:
        if not answer.tokens:
            return 0.0
        return sum(token in self._tokens for token in answer.tokens) / len(answer.tokens)
