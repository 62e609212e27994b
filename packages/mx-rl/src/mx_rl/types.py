"""The values that move through the loop. Log-probabilities: natural, float32, of the distribution
that was sampled from (logits / temperature)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
VersionSpan = tuple[int, int, str]
"""(start, stop, version): the weights that sampled completion tokens ``start`` to ``stop``."""


@dataclass(frozen=True, slots=True, eq=False)
class Completion:
    """What a sampler gives back for one prompt: tokens and the log-probability of each, [T]."""

    prompt_index: int
    tokens: tuple[int, ...]
    log_probs: Floats
    finish_reason: str
    version_spans: tuple[VersionSpan, ...]


@dataclass(frozen=True, slots=True)
class Prompt:
    """One question: its tokens, and which example of the task it came from."""

    example: int
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Rollout:
    """One completion with its reward. Has the ``prompt`` and ``completion`` that learners read."""

    prompt: tuple[int, ...]
    completion: tuple[int, ...]
    log_probs: Floats
    reward: float
    version_spans: tuple[VersionSpan, ...]

    def __post_init__(self) -> None:
        if len(self.log_probs) != len(self.completion):
            raise ValueError(
                f"a rollout of {len(self.completion)} tokens has {len(self.log_probs)} "
                "log-probabilities; expected one for every token"
            )


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """All completions of one prompt: GRPO compares them with each other."""

    prompt: Prompt
    rollouts: tuple[Rollout, ...]

    @property
    def rewards(self) -> tuple[float, ...]:
        return tuple(rollout.reward for rollout in self.rollouts)


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """What one learner update is computed from; ``advantages`` has one value per sequence."""

    groups: tuple[Group, ...]
    advantages: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.advantages) != len(self.sequences):
            raise ValueError(
                f"{len(self.advantages)} advantages for {len(self.sequences)} sequences"
            )

    @property
    def sequences(self) -> tuple[Rollout, ...]:
        return tuple(rollout for group in self.groups for rollout in group.rollouts)

    @property
    def tokens(self) -> int:
        """Completion tokens."""
        return sum(len(rollout.completion) for rollout in self.sequences)

    @property
    def versions(self) -> tuple[str, ...]:
        """The versions that sampled its tokens, sorted."""
        return tuple(sorted({v for rollout in self.sequences for _, _, v in rollout.version_spans}))

    def __iter__(self) -> Iterator[Group]:
        return iter(self.groups)


@dataclass(frozen=True, slots=True)
class Scored:
    """A prompt and a completion to be scored."""

    prompt: tuple[int, ...]
    completion: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """One call of the sampler; ``seed`` makes it reproducible."""

    prompts: tuple[tuple[int, ...], ...]
    n: int
    max_tokens: int
    temperature: float
    seed: int
    stop_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class TrainResult:
    """What a learner update did; ``log_probs`` are its first forward pass, before any change."""

    version: str
    metrics: dict[str, float]
    log_probs: tuple[Floats, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class SyncResult:
    """One sync, as it goes into the run's records."""

    version: str
    seconds: float
    phase_seconds: dict[str, float]
    bytes: int
    tensors: int
    checked: int
    bytes_equal: bool


def concatenate(arrays: Sequence[Floats]) -> Floats:
    """All values of a list of [T] arrays, in order."""
    return np.concatenate(arrays) if arrays else np.zeros(0, dtype=np.float32)
