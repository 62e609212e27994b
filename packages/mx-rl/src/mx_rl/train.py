"""One run from a configuration to a summary: the parts of the package, put together."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mx_rl import compat
from mx_rl.config import Config, keys
from mx_rl.errors import UserError
from mx_rl.events import EventWriter
from mx_rl.loop import Record, Trainer
from mx_rl.models import prepare_model
from mx_rl.overrides import apply_overrides
from mx_rl.plugins import require_adapter
from mx_rl.precision_table import precision_table
from mx_rl.ray import RayRuntime, RayTeam
from mx_rl.report import Report
from mx_rl.rundir import RunDirectory
from mx_rl.tasks import PromptRenderer, Task, build_task

log = logging.getLogger(__name__)

CHANGEABLE = (
    "run.steps",
    "run.checkpoint_every",
    "run.keep_checkpoints",
    "run.precision_table",
    *(key for key in keys() if key.startswith(("ray.", "sync."))),
)
"""Settings that a resumed run may change without becoming another run."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a run needs before anything is started; see ``prepare``."""

    model: Path
    task: Task
    renderer: PromptRenderer


def prepare(config: Config, *, cache: Path) -> Inputs:
    """Find or make the model, the task and the prompts. Raises UserError for what is missing.

    Done before a run directory is made, so that a mistake leaves none behind.
    """
    for role, name in (("learner", config.engines.learner), ("sampler", config.engines.sampler)):
        require_adapter(role, name)
    model = prepare_model(config.model.path, cache=cache)
    task = build_task(config.task, seed=config.run.seed)
    return Inputs(model, task, PromptRenderer(model, config.task))


def run_training(
    config: Config,
    inputs: Inputs,
    *,
    run: RunDirectory,
    report: Report,
    stopping: Callable[[], bool],
) -> bool:
    """Train in ``run``, from its last checkpoint if it has one.

    Returns False when it was asked to stop before the last step. summary.json is written in every
    case in which the engines started, also when a step fails.
    """
    with ExitStack() as stack:
        stack.enter_context(_driver_log(run))
        done, checkpoint = _where(run)
        run.forget_after(done)
        report.say(f"run directory: {run.path}")
        runtime = stack.enter_context(RayRuntime(config.ray))
        report.say(
            f"ray is up; {runtime.threads} threads a role, "
            f"allocator: {runtime.environment.allocator}"
        )
        team = RayTeam(config, runtime=runtime, run=run, model=inputs.model, checkpoint=checkpoint)
        stack.callback(team.close)
        described = team.describe()
        pids = team.pids()
        for role, facts in described.items():
            told = ", ".join(f"{key}={value}" for key, value in facts.items())
            report.say(f"{role} (process {pids[role]}): {told}")
        events = EventWriter(run.path)
        stack.callback(events.close)
        trainer = Trainer(
            config,
            team=team,
            task=inputs.task,
            renderer=inputs.renderer,
            run=run,
            listener=_Listeners(report, events),
            stopping=stopping,
            done=done,
        )
        rows: list[dict[str, Any]] = []
        finished = False
        try:
            finished = trainer.run()
            if finished and config.run.precision_table and not stopping():
                rows = _precisions(config, trainer, team, report)
        finally:
            run.write_summary(_summary(run, described, rows, finished=finished))
    report.steps(run.records())
    if rows:
        report.precisions(rows)
    return finished


def resumed_config(run: RunDirectory, assignments: Sequence[str]) -> Config:
    """The run's own configuration with ``assignments``, which may only be of ``CHANGEABLE``."""
    wrong = [a for a in assignments if a.partition("=")[0].strip() not in CHANGEABLE]
    if wrong:
        raise UserError(
            f"--set {wrong[0]} cannot change in a resumed run, it would become another run; "
            f"these can: {', '.join(CHANGEABLE)}"
        )
    config = apply_overrides(run.config(), assignments)
    run.rewrite_config(config)
    return config


class _Listeners:
    def __init__(self, report: Report, events: EventWriter) -> None:
        self._report, self._events = report, events

    def phase(self, name: str, step: int) -> None:
        self._report.phase(name, step)

    def step(self, record: Record) -> None:
        self._events.write(record)
        self._report.step(record)


@contextmanager
def _driver_log(run: RunDirectory) -> Iterator[None]:
    """Log records of the driver go to logs/driver.log while the block runs."""
    handler = logging.FileHandler(run.log("driver"))
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("mx_rl")
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.level, logger.propagate = before
        handler.close()


def _where(run: RunDirectory) -> tuple[int, Path | None]:
    if not run.checkpoints():
        if run.records():
            run.latest()  # raises: there were steps, and no checkpoint to go on from
        return 0, None
    state, path = run.latest()
    return state.step, path / "learner"


def _precisions(
    config: Config, trainer: Trainer, team: RayTeam, report: Report
) -> list[dict[str, Any]]:
    report.say("comparing the four pairs of precisions at the final weights")
    report.phase("precisions", config.run.steps)
    prompts = [prompt for prompt, _ in trainer.prompts(0, purpose="compare")]
    request = trainer.request(prompts, config.run.steps)
    return precision_table(team, request, live=config.precision.sampler)


def _summary(
    run: RunDirectory,
    described: dict[str, dict[str, str]],
    rows: list[dict[str, Any]],
    *,
    finished: bool,
) -> dict[str, Any]:
    summary: dict[str, Any] = {
        "steps": run.records(),
        "versions": compat.versions(),
        "engines": described,
        "run": run.name,
        "finished": finished,
    }
    if rows:
        summary["precision_table"] = rows
    return summary
