"""A learner and a sampler in processes of their own, as one ``Team``."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from mx_rl.config import AlgorithmConfig, Config, Precision, SyncConfig
from mx_rl.errors import RoleFailed
from mx_rl.ray.actors import LearnerActor, SamplerActor
from mx_rl.ray.calls import Role
from mx_rl.ray.runtime import RayRuntime
from mx_rl.rundir import RunDirectory
from mx_rl.types import (
    Batch,
    Completion,
    Floats,
    SampleRequest,
    Scored,
    SyncResult,
    TrainResult,
)
from mx_rl.workers import LearnerSpec, SamplerSpec, export_format
from mx_sync import SyncError

log = logging.getLogger(__name__)


def learner_spec(
    config: Config, *, model: Path, run: str, threads: int, checkpoint: Path | None
) -> LearnerSpec:
    """The part of a configuration that makes a learner."""
    return LearnerSpec(
        adapter=config.engines.learner,
        model=str(model),
        precision=config.precision.learner,
        layers=config.precision.layers,
        optimizer=config.optimizer,
        temperature=config.sampling.temperature,
        run=run,
        seed=config.run.seed,
        threads=threads,
        checkpoint=None if checkpoint is None else str(checkpoint),
    )


def sampler_spec(config: Config, *, precision: Precision, threads: int) -> SamplerSpec:
    """The part of a configuration that boots a sampler."""
    return SamplerSpec(
        adapter=config.engines.sampler,
        precision=precision,
        sampling=config.sampling,
        seed=config.run.seed,
        threads=threads,
    )


class RayTeam:
    """Started by the constructor: the learner loads, exports, and the sampler boots from that.

    Raises UserError for what the configuration got wrong, RoleDied for a process that is gone.
    """

    def __init__(
        self,
        config: Config,
        *,
        runtime: RayRuntime,
        run: RunDirectory,
        model: Path,
        checkpoint: Path | None = None,
    ) -> None:
        self._config = config
        self._runtime = runtime
        self._run = run
        self._roles: list[Role] = []
        self._precision: Precision = config.precision.sampler
        try:
            self._start(model, checkpoint)
        except BaseException:
            self.close()
            raise

    def _start(self, model: Path, checkpoint: Path | None) -> None:
        config, threads = self._config, self._runtime.threads
        spec = learner_spec(
            config, model=model, run=self._run.name, threads=threads, checkpoint=checkpoint
        )
        self._learner = self._role("learner", LearnerActor, spec, log_name="learner")
        loading = self._learner.begin("start")
        self._sampler = self._new_sampler(config.precision.sampler)
        preparing = self._sampler.begin("prepare")
        self._reference: Role | None = None
        if config.algorithm.kl_coef > 0:
            still = learner_spec(
                config, model=model, run=self._run.name, threads=threads, checkpoint=None
            )
            self._reference = self._role("learner", LearnerActor, still, log_name="reference")
        self._version: str = self._learner.end(loading, "start", setup=True)
        self._sampler.end(preparing, "import its engine", setup=True)
        if self._reference is not None:
            self._reference.call("start", setup=True)
        self._boot(config.precision.sampler)

    def generate(self, request: SampleRequest) -> list[Completion]:
        found: list[Completion] = self._sampler.call("generate", request)
        return found

    def train(self, batch: Batch, algorithm: AlgorithmConfig) -> TrainResult:
        reference = None
        if self._reference is not None:
            sequences = [Scored(r.prompt, r.completion) for r in batch.sequences]
            reference = self._reference.call("score", sequences, None)
        result: TrainResult = self._learner.call("train", batch, algorithm, reference)
        self._version = result.version
        return result

    def score(self, sequences: Sequence[Scored], *, precision: str | None) -> list[Floats]:
        scores: list[Floats] = self._learner.call("score", list(sequences), precision)
        return scores

    def sync(self, settings: SyncConfig | None = None) -> SyncResult:
        """``settings``: other ones than the run's, for this sync."""
        config = self._config
        handle = [self._sampler.handle]
        try:
            result: SyncResult = self._learner.call(
                "sync_with", handle, self._precision, settings or config.sync, config.run.seed
            )
        except (RoleFailed, SyncError):
            # The learner tells of a sampler that does not answer; say plainly if it is dead.
            self._sampler.require_alive("sync")
            raise
        return result

    def replace_sampler(self, precision: Precision) -> None:
        """The old sampler's process ends before the new one's starts: they need not both fit."""
        self._end(self._sampler)
        self._sampler = self._new_sampler(precision)
        self._boot(precision)

    def save(self, directory: Path) -> None:
        self._learner.call("save", str(directory))

    def export(self, directory: Path, *, format: str) -> None:
        self._learner.call("export", str(directory), format)

    def version(self) -> str:
        return self._version

    def describe(self) -> dict[str, dict[str, str]]:
        return {
            "learner": self._learner.call("describe"),
            "sampler": self._sampler.call("describe"),
        }

    def pids(self) -> dict[str, int]:
        """The processes of the learner and the sampler."""
        return {role.name: role.call("pid") for role in (self._learner, self._sampler)}

    def close(self) -> None:
        """End the processes of both roles. Never raises for one that is already gone."""
        for role in list(self._roles):
            self._end(role)

    def _end(self, role: Role) -> None:
        self._roles.remove(role)
        role.end_process()

    def _new_sampler(self, precision: Precision) -> Role:
        spec = sampler_spec(self._config, precision=precision, threads=self._runtime.threads)
        return self._role("sampler", SamplerActor, spec, log_name="sampler")

    def _boot(self, precision: Precision) -> None:
        self._precision = precision
        with self._run.scratch("boot") as directory:
            self._learner.call("export", str(directory), export_format(precision), setup=True)
            self._sampler.call("boot", str(directory), self._version, setup=True)

    def _role(
        self, name: Literal["learner", "sampler"], kind: type, spec: object, *, log_name: str
    ) -> Role:
        role = Role(
            name,
            kind,
            spec,
            log_path=self._run.log(log_name),
            environment=self._runtime.environment.variables,
            gpus=self._config.ray.gpus,
            timeout_s=self._config.ray.call_timeout_s,
        )
        self._roles.append(role)
        return role
