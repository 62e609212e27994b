"""``mx-rl`` as a user starts it, and what it leaves behind."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

START_S = 900.0
"""Engines start in well under a minute on a quiet machine; a busy one takes its time."""


class Command:
    """A running ``mx-rl``; its output can be waited for line by line."""

    def __init__(self, arguments: Sequence[str], *, cwd: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mx_rl.cli", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=cwd,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as output:
            for line in output:
                self.lines.append(line.rstrip("\n"))

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    def wait_for(self, pattern: str) -> re.Match[str]:
        """The first match in the output so far or to come; fails if the command ends before."""
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            ended = self.process.poll() is not None
            if ended:
                self._reader.join(10)
            found = re.search(pattern, self.output)
            if found is not None:
                return found
            if ended:
                break
            time.sleep(0.05)
        self.process.kill()
        raise AssertionError(f"{pattern!r} did not appear in:\n{self.output}")

    def end(self, *, timeout_s: float = START_S) -> int:
        """The exit code."""
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        self._reader.join(10)
        return code

    def descendants(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)


def run(arguments: Sequence[str], *, cwd: Path) -> Command:
    """A command that has ended well."""
    command = Command(arguments, cwd=cwd)
    assert command.end() == 0, command.output
    return command


def run_directory(command: Command) -> Path:
    return Path(command.wait_for(r"run directory: (\S+)").group(1))


def records(directory: Path) -> list[dict[str, Any]]:
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def facts(record: dict[str, Any]) -> dict[str, Any]:
    """What must not depend on the machine's mood: everything but times and the run's name."""
    kept = {k: v for k, v in record.items() if not k.endswith("seconds")}
    for key in ("weight_version", "sampled_version"):
        kept[key] = kept[key].rpartition("@")[2]
    return kept


def left_alive(processes: Sequence[psutil.Process], *, within_s: float = 30.0) -> list[str]:
    """Those of ``processes`` that still run after a while."""
    _, alive = psutil.wait_procs(processes, timeout=within_s)
    return [process.name() for process in alive if process.status() != psutil.STATUS_ZOMBIE]


def shared_memory() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir()}
