"""The directory of one run.

    config.json      the validated configuration
    metrics.jsonl    one object per finished step
    events.out.*     the same for TensorBoard
    checkpoints/     step-N: learner/ (its own files) and loop.json
    logs/            learner.log, sampler.log, driver.log
    summary.json     {"steps": [...], "versions": {...}, ...}

Every file but the logs is written whole: to a neighbour first, then renamed.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mx_rl.config import Config, load
from mx_rl.errors import UserError

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class LoopState:
    """Where a run stands: ``step`` finished steps; the next example is number ``cursor``."""

    step: int
    version: str
    seed: int
    cursor: int
    schema: int = SCHEMA


class RunDirectory:
    """Made by ``create`` or found by ``open``; locked against a second process while in use."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = _lock(path)

    @property
    def name(self) -> str:
        """Also the run's name in weight versions."""
        return self.path.name

    @classmethod
    def create(cls, config: Config) -> RunDirectory:
        """A new directory ``<run.dir>/<run.name>-<timestamp>``, its configuration written."""
        base = Path(config.run.dir).expanduser()
        stem = f"{config.run.name}-{time.strftime('%Y%m%d-%H%M%S')}"
        for attempt in range(100):
            path = base / (stem if attempt == 0 else f"{stem}-{attempt}")
            try:
                path.mkdir(parents=True)
            except FileExistsError:
                if not base.is_dir():
                    raise UserError(f"run.dir={str(base)!r} is not a directory") from None
                continue
            except OSError as error:
                raise UserError(f"run.dir={str(base)!r}: cannot be written ({error})") from error
            run = cls(path.resolve())
            run._write("config.json", config.model_dump(mode="json"))
            for part in ("checkpoints", "logs"):
                (run.path / part).mkdir()
            return run
        raise UserError(f"{base / stem}: a hundred runs in one second; choose another run.name")

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> RunDirectory:
        """An existing one. Raises UserError if it is none, or another process is at work in it."""
        found = Path(path).expanduser()
        if not (found / "config.json").is_file():
            raise UserError(f"{found} is not a run directory: it has no config.json")
        return cls(found.resolve())

    def config(self) -> Config:
        return load(json.loads((self.path / "config.json").read_text(encoding="utf-8")))

    def rewrite_config(self, config: Config) -> None:
        self._write("config.json", config.model_dump(mode="json"))

    def log(self, role: str) -> Path:
        return self.path / "logs" / f"{role}.log"

    # Metrics and summary

    def append(self, record: dict[str, Any]) -> None:
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def records(self) -> list[dict[str, Any]]:
        """The steps so far; a last line that a crash cut short is left out."""
        path = self.path / "metrics.jsonl"
        if not path.is_file():
            return []
        whole = path.read_text(encoding="utf-8").split("\n")[:-1]
        return [json.loads(line) for line in whole]

    def forget_after(self, step: int) -> None:
        """Drop records of later steps: the run goes on from ``step`` and makes them again."""
        kept = [record for record in self.records() if record["step"] <= step]
        _replace(self.path / "metrics.jsonl", "".join(json.dumps(r) + "\n" for r in kept))

    def write_summary(self, summary: dict[str, Any]) -> None:
        self._write("summary.json", summary)

    # Checkpoints

    def checkpoints(self) -> list[tuple[int, Path]]:
        """(step, directory) of every whole checkpoint, oldest first."""
        found = []
        for path in (self.path / "checkpoints").glob("step-*"):
            number = path.name.removeprefix("step-")
            if number.isdigit() and (path / "loop.json").is_file():
                found.append((int(number), path))
        return sorted(found)

    def latest(self) -> tuple[LoopState, Path]:
        """The newest checkpoint. Raises UserError if there is none."""
        found = self.checkpoints()
        if not found:
            raise UserError(
                f"{self.path} has no checkpoint: the run ended before one was written. "
                "Start it again with mx-rl train"
            )
        path = found[-1][1]
        values = json.loads((path / "loop.json").read_text(encoding="utf-8"))
        if values.get("schema") != SCHEMA:
            raise UserError(
                f"{path}/loop.json has schema {values.get('schema')}, this version reads {SCHEMA}"
            )
        return LoopState(**values), path

    @contextmanager
    def checkpoint(self, state: LoopState, *, keep: int) -> Iterator[Path]:
        """A directory to save into; it becomes ``checkpoints/step-N`` when the block ends well."""
        target = self.path / "checkpoints" / f"step-{state.step}"
        work = target.with_name(f".{target.name}.{os.getpid()}")
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        try:
            yield work
            _replace(work / "loop.json", json.dumps(asdict(state), indent=2) + "\n")
            shutil.rmtree(target, ignore_errors=True)
            os.replace(work, target)
        finally:
            shutil.rmtree(work, ignore_errors=True)
        for _, path in self.checkpoints()[:-keep]:
            shutil.rmtree(path)

    @contextmanager
    def scratch(self, name: str) -> Iterator[Path]:
        """The path of a directory that does not exist yet and is removed afterwards."""
        path = self.path / f".{name}"
        shutil.rmtree(path, ignore_errors=True)
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def close(self) -> None:
        """Let another process use the directory."""
        os.close(self._lock)

    def _write(self, name: str, value: dict[str, Any]) -> None:
        _replace(self.path / name, json.dumps(value, indent=2) + "\n")


def _lock(path: Path) -> int:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise UserError(f"{path} is in use by another mx-rl process") from None
    return descriptor


def _replace(path: Path, text: str) -> None:
    part = path.with_name(f".{path.name}.part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)
