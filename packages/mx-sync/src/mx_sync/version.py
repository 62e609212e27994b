"""Which weights: one run, one optimizer step."""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_STEP = 2**53 - 1
"""The largest integer that every JSON reader keeps exactly."""

_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+-]{0,127}")


@dataclass(frozen=True, slots=True)
class WeightVersion:
    """The weights of ``run`` after ``step`` optimizer steps. Prints as ``run@step``.

    Two versions can be ordered only within one run; equality works across runs.

    Raises:
        ValueError: ``run`` is not 1 to 128 characters of ``A-Za-z0-9._:/+-`` that begin with a
            letter or digit, or ``step`` is not an integer from 0 to 2**53 - 1.

    """

    run: str
    step: int

    def __post_init__(self) -> None:
        if not isinstance(self.run, str) or _RUN.fullmatch(self.run) is None:
            raise ValueError(
                f"run {self.run!r:.200} is not a run name: expected 1 to 128 characters of"
                " A-Z a-z 0-9 . _ : / + - that begin with a letter or digit"
            )
        if type(self.step) is not int or not 0 <= self.step <= MAX_STEP:
            raise ValueError(f"step {self.step!r:.200} is not an integer from 0 to {MAX_STEP}")

    def __str__(self) -> str:
        return f"{self.run}@{self.step}"

    @classmethod
    def parse(cls, text: str) -> WeightVersion:
        """The inverse of ``str``. Raises ValueError for anything else."""
        run, at, step = text.rpartition("@")
        if not at or re.fullmatch(r"0|[1-9][0-9]{0,15}", step) is None:
            raise ValueError(f"{text!r:.200} is not a weight version: expected 'run@step'")
        return cls(run, int(step))

    def __lt__(self, other: WeightVersion) -> bool:
        return self._step_beside(other) < other.step

    def __le__(self, other: WeightVersion) -> bool:
        return self._step_beside(other) <= other.step

    def __gt__(self, other: WeightVersion) -> bool:
        return self._step_beside(other) > other.step

    def __ge__(self, other: WeightVersion) -> bool:
        return self._step_beside(other) >= other.step

    def _step_beside(self, other: WeightVersion) -> int:
        if self.run != other.run:
            raise ValueError(
                f"versions {self} and {other} belong to different runs and have no order"
            )
        return self.step
