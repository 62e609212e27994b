"""The seams of the loop: what a learner, a sampler and a team of both must offer.

Adapters satisfy ``Learner`` and ``Sampler`` structurally and are found by entry point (groups
``mx.learners`` and ``mx.samplers``); they import nothing from here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from mx_rl.types import Batch, Completion, Floats, SampleRequest, Scored, SyncResult, TrainResult

if TYPE_CHECKING:
    from torch import Tensor

    from mx_rl.config import AlgorithmConfig, Precision
    from mx_sync import TransactionalSink, WeightSource, WeightVersion

    LossFn = Callable[[list[Tensor], list[int]], tuple[Tensor, dict[str, float]]]

AnyPath = str | os.PathLike[str]


class TokenSequence(Protocol):
    """A prompt and a completion, both token ids."""

    @property
    def prompt(self) -> Sequence[int]: ...
    @property
    def completion(self) -> Sequence[int]: ...


class SampledCompletion(Protocol):
    """What an adapter's ``generate`` returns; ``Completion`` is our own copy of it."""

    @property
    def prompt_index(self) -> int: ...
    @property
    def tokens(self) -> Sequence[int]: ...
    @property
    def log_probs(self) -> Floats: ...
    @property
    def finish_reason(self) -> str: ...
    @property
    def version_spans(self) -> Sequence[tuple[int, int, str]]: ...


class Learner(Protocol):
    """Trains. Built by ``from_checkpoint(path, *, precision, layers, learning_rate, weight_decay,
    betas, eps, clip_grad, run, seed, threads)``."""

    @property
    def version(self) -> WeightVersion: ...

    def log_probs(
        self,
        sequences: Sequence[TokenSequence],
        *,
        temperature: float,
        micro_batch_tokens: int,
        precision: str | None = None,
    ) -> list[Floats]: ...

    def step(
        self,
        sequences: Sequence[TokenSequence],
        loss_fn: LossFn,
        *,
        temperature: float,
        micro_batch_tokens: int,
    ) -> dict[str, float]: ...

    def source(self, *, precision: str | None = None) -> WeightSource: ...
    def save(self, directory: AnyPath) -> None: ...
    def load(self, directory: AnyPath) -> None: ...
    def export(self, directory: AnyPath, *, format: str) -> None: ...
    def describe(self) -> dict[str, str]: ...
    def close(self) -> None: ...


class Sampler(Protocol):
    """Generates. Built by ``boot(path, *, precision, max_model_len, max_num_seqs, seed,
    kv_cache_gib, version, threads)``."""

    @property
    def version(self) -> str: ...

    def generate(
        self,
        prompts: list[list[int]],
        *,
        n: int,
        max_tokens: int,
        temperature: float,
        seed: int,
        stop_token_ids: Sequence[int] = (),
    ) -> Sequence[SampledCompletion]: ...

    def sink(self) -> TransactionalSink: ...
    def describe(self) -> dict[str, str]: ...
    def close(self) -> None: ...


class Team(Protocol):
    """A learner and a sampler, wherever they run. The loop knows nothing else."""

    def generate(self, request: SampleRequest) -> list[Completion]: ...
    def train(self, batch: Batch, algorithm: AlgorithmConfig) -> TrainResult: ...
    def score(self, sequences: Sequence[Scored], *, precision: str | None) -> list[Floats]: ...
    def sync(self) -> SyncResult: ...
    def replace_sampler(self, precision: Precision) -> None:
        """Boot another sampler on the learner's current weights instead of the live one."""
        ...

    def save(self, directory: Path) -> None: ...
    def version(self) -> str: ...
    def describe(self) -> dict[str, dict[str, str]]: ...
    def close(self) -> None: ...
