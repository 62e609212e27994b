"""From configuration to a task, with the user's own reward function if there is one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from mx_rl.config import TaskConfig
from mx_rl.errors import UserError
from mx_rl.plugins import import_object
from mx_rl.tasks.base import Answer, Example, Task
from mx_rl.tasks.gym import GymTask
from mx_rl.tasks.jsonl import JsonlTask
from mx_rl.tasks.target import TargetTokens


def build_task(config: TaskConfig, *, seed: int) -> Task:
    """The task that ``config`` names. Raises UserError for whatever is missing."""
    task: Task
    if config.kind == "reasoning_gym":
        task = GymTask(config.dataset, options=config.options, size=config.size, seed=seed)
    elif config.kind == "jsonl":
        task = JsonlTask(
            config.path or "",
            question_field=config.question_field,
            answer_field=config.answer_field,
            verify=config.reward is None,
        )
    else:
        task = TargetTokens(config.target_tokens, size=config.size, seed=seed)
    if config.reward is None:
        return task
    function = import_object(config.reward, what="task.reward")
    if not callable(function):
        raise UserError(f"task.reward={config.reward!r} is not callable")
    return OwnReward(task, function, name=config.reward)


class OwnReward:
    """A task whose completions are scored by ``function(example, answer) -> float``."""

    def __init__(
        self, task: Task, function: Callable[[Example, Answer], Any], *, name: str
    ) -> None:
        self._task, self._function, self._name = task, function, name

    @property
    def size(self) -> int:
        return self._task.size

    def example(self, index: int) -> Example:
        return self._task.example(index)

    def score(self, example: Example, answer: Answer) -> float:
        value = self._function(example, answer)
        try:
            score = float(value)
        except (TypeError, ValueError):
            score = math.nan
        if not math.isfinite(score):
            raise UserError(
                f"task.reward={self._name!r} returned {value!r} for example {example.index}; "
                "expected a finite number"
            )
        return score
