"""What runs in the learner's and in the sampler's process: thin layers over the adapters.

They know nothing of Ray, so a test can put both into one process. ``start`` does the work that can
fail, not the constructor: a failed actor constructor loses the error's type.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mx_rl.config import AlgorithmConfig, OptimizerConfig, Precision, SamplingConfig, SyncConfig
from mx_rl.loss import LossSettings, PolicyLoss
from mx_rl.plugins import find_adapter
from mx_rl.roles import Learner, Sampler
from mx_rl.types import (
    Batch,
    Completion,
    Floats,
    SampleRequest,
    Scored,
    SyncResult,
    TrainResult,
)
from mx_sync import Readback, ShmReceiver, ShmSender, SinkClient, SinkServer, sync

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LearnerSpec:
    """How to make a learner; ``checkpoint``: a directory of its own ``save`` to continue from."""

    adapter: str
    model: str
    precision: Precision
    layers: str
    optimizer: OptimizerConfig
    temperature: float
    run: str
    seed: int
    threads: int | None
    checkpoint: str | None


@dataclass(frozen=True, slots=True)
class SamplerSpec:
    """How to boot a sampler from an export that holds ``version``."""

    adapter: str
    precision: Precision
    sampling: SamplingConfig
    seed: int
    threads: int | None


class LearnerWorker:
    """Owns the learner and the sending side of the sync."""

    def __init__(self, spec: LearnerSpec) -> None:
        self._spec = spec
        self._learner: Learner
        self._sender: ShmSender | None = None

    def start(self) -> str:
        """Load the model, and the checkpoint if there is one; returns the version."""
        spec, adam = self._spec, self._spec.optimizer
        adapter = find_adapter("learner", spec.adapter)
        self._learner = adapter.from_checkpoint(
            spec.model,
            precision=spec.precision,
            layers=spec.layers,
            learning_rate=adam.learning_rate,
            weight_decay=adam.weight_decay,
            betas=adam.betas,
            eps=adam.eps,
            clip_grad=adam.clip_grad,
            run=spec.run,
            seed=spec.seed,
            threads=spec.threads,
        )
        if spec.checkpoint is not None:
            self._learner.load(spec.checkpoint)
        log.info("learner holds %s", self._learner.version)
        return str(self._learner.version)

    def version(self) -> str:
        return str(self._learner.version)

    def train(
        self, batch: Batch, algorithm: AlgorithmConfig, reference: list[Floats] | None
    ) -> TrainResult:
        """``updates_per_batch`` optimizer steps on one batch."""
        begun = time.perf_counter()
        settings = LossSettings(
            clip_low=algorithm.clip_low,
            clip_high=algorithm.clip_high,
            normalization=algorithm.normalization,
            importance_cap=algorithm.importance_cap,
            kl_coef=algorithm.kl_coef,
        )
        old: tuple[Floats, ...] | None = None
        metrics: dict[str, float] = {}
        for _ in range(algorithm.updates_per_batch):
            loss = PolicyLoss(batch, settings, old=old, reference=reference)
            metrics = self._learner.step(
                batch.sequences,
                loss,
                temperature=self._spec.temperature,
                micro_batch_tokens=self._spec.optimizer.micro_batch_tokens,
            )
            if old is None:
                empty = np.zeros(0, dtype=np.float32)
                old = tuple(loss.seen.get(i, empty) for i in range(len(batch.sequences)))
        assert old is not None
        return TrainResult(
            version=str(self._learner.version),
            metrics=dict(metrics),
            log_probs=old,
            seconds=time.perf_counter() - begun,
        )

    def score(self, sequences: Sequence[Scored], precision: str | None) -> list[Floats]:
        """Log-probabilities of completions at the current weights, in either precision."""
        return self._learner.log_probs(
            sequences,
            temperature=self._spec.temperature,
            micro_batch_tokens=self._spec.optimizer.micro_batch_tokens,
            precision=precision,
        )

    def sync(
        self, call: Callable[[bytes], bytes], precision: Precision, config: SyncConfig, seed: int
    ) -> SyncResult:
        """Move the current weights to the sampler behind ``call``, and have them read back."""
        if self._sender is None:
            self._sender = ShmSender()
        report = sync(
            self._learner.source(precision=precision),
            [SinkClient(call, self._sender)],
            bucket_bytes=config.bucket_mib * 2**20,
            readback=_readback(config, seed),
        )
        return SyncResult(
            version=report.version,
            seconds=report.seconds,
            phase_seconds=dict(report.phase_seconds),
            bytes=report.bytes,
            tensors=report.tensors,
            checked=report.checked,
            bytes_equal=report.bytes_equal,
        )

    def export(self, directory: str, format: str) -> None:
        self._learner.export(directory, format=format)

    def save(self, directory: str) -> None:
        self._learner.save(directory)

    def describe(self) -> dict[str, str]:
        return self._learner.describe()

    def close(self) -> None:
        if self._sender is not None:
            self._sender.close()
        if hasattr(self, "_learner"):
            self._learner.close()


class SamplerWorker:
    """Owns the sampler and the receiving side of the sync."""

    def __init__(self, spec: SamplerSpec) -> None:
        self._spec = spec
        self._sampler: Sampler
        self._server: SinkServer | None = None
        self._adapter: Any = None

    def prepare(self) -> None:
        """Import the engine; takes seconds, and needs no weights."""
        self._adapter = find_adapter("sampler", self._spec.adapter)

    def boot(self, directory: str, version: str) -> str:
        """Load the weights of ``version`` from an export; returns the version it serves."""
        self.prepare()
        sampling = self._spec.sampling
        self._sampler = self._adapter.boot(
            Path(directory),
            precision=self._spec.precision,
            max_model_len=sampling.max_model_len,
            max_num_seqs=sampling.max_num_seqs,
            seed=self._spec.seed,
            kv_cache_gib=sampling.kv_cache_gib,
            version=version,
            threads=self._spec.threads,
        )
        self._server = SinkServer(self._sampler.sink(), ShmReceiver())
        log.info("sampler serves %s", self._sampler.version)
        return self._sampler.version

    def generate(self, request: SampleRequest) -> list[Completion]:
        """Completions, those of one prompt together, in the order of the prompts."""
        found = self._sampler.generate(
            [list(prompt) for prompt in request.prompts],
            n=request.n,
            max_tokens=request.max_tokens,
            temperature=request.temperature,
            seed=request.seed,
            stop_token_ids=request.stop_token_ids,
        )
        # Copied into our own type: an adapter's classes may not exist in the other processes.
        return [
            Completion(
                prompt_index=item.prompt_index,
                tokens=tuple(int(token) for token in item.tokens),
                log_probs=np.asarray(item.log_probs, dtype=np.float32),
                finish_reason=item.finish_reason,
                version_spans=tuple((int(a), int(b), str(v)) for a, b, v in item.version_spans),
            )
            for item in found
        ]

    def sink_call(self, message: bytes) -> bytes:
        """The sampler's end of the sync's control channel."""
        if self._server is None:
            raise RuntimeError("the sampler has not booted yet: boot it before a sync")
        return self._server.handle(message)

    def describe(self) -> dict[str, str]:
        return self._sampler.describe()

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._sampler.close()


def _readback(config: SyncConfig, seed: int) -> Readback:
    if isinstance(config.readback, str):
        return Readback.ALL if config.readback == "all" else Readback.OFF
    return Readback.sampled(config.readback, seed=seed)


def export_format(precision: Precision) -> str:
    """The checkpoint that a sampler of this precision boots from."""
    return "mxfp8" if precision == "mxfp8" else "hf"
