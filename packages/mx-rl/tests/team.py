"""Both workers in one process, as a ``Team``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mx_rl.config import AlgorithmConfig, Config, Precision
from mx_rl.ray.team import learner_spec, sampler_spec
from mx_rl.types import (
    Batch,
    Completion,
    Floats,
    SampleRequest,
    Scored,
    SyncResult,
    TrainResult,
)
from mx_rl.workers import LearnerWorker, SamplerWorker, export_format


class LocalTeam:
    def __init__(
        self,
        config: Config,
        *,
        model: Path,
        run: str,
        scratch: Path,
        checkpoint: Path | None,
    ) -> None:
        self._config, self._scratch = config, scratch
        spec = learner_spec(config, model=model, run=run, threads=1, checkpoint=checkpoint)
        self.learner = LearnerWorker(spec)
        self.learner.start()
        self._boots = 0
        self._boot(config.precision.sampler)

    def _boot(self, precision: Precision) -> None:
        self._precision = precision
        self._boots += 1
        folder = self._scratch / f"boot-{self._boots}"
        self.learner.export(str(folder), export_format(precision))
        self.sampler = SamplerWorker(sampler_spec(self._config, precision=precision, threads=1))
        self.sampler.boot(str(folder), self.learner.version())

    def generate(self, request: SampleRequest) -> list[Completion]:
        return self.sampler.generate(request)

    def train(self, batch: Batch, algorithm: AlgorithmConfig) -> TrainResult:
        return self.learner.train(batch, algorithm, None)

    def score(self, sequences: Sequence[Scored], *, precision: str | None) -> list[Floats]:
        return self.learner.score(sequences, precision)

    def sync(self) -> SyncResult:
        config = self._config
        return self.learner.sync(
            self.sampler.sink_call, self._precision, config.sync, config.run.seed
        )

    def replace_sampler(self, precision: Precision) -> None:
        self.sampler.close()
        self._boot(precision)

    def save(self, directory: Path) -> None:
        self.learner.save(str(directory))

    def version(self) -> str:
        return self.learner.version()

    def describe(self) -> dict[str, dict[str, str]]:
        return {"learner": self.learner.describe(), "sampler": self.sampler.describe()}

    def close(self) -> None:
        self.sampler.close()
        self.learner.close()
