"""Any task of reasoning-gym, with its own generator and scorer."""

from __future__ import annotations

import warnings
from typing import Any

from mx_rl.errors import UserError, did_you_mean
from mx_rl.tasks.base import Answer, Example


class GymTask:
    """``name``: reasoning-gym's; ``options``: its settings; the examples depend on ``seed``."""

    def __init__(self, name: str, *, options: dict[str, Any], size: int, seed: int) -> None:
        gym, known = _load()
        if name not in known:
            near = did_you_mean(name, known)
            raise UserError(
                f"task.dataset={name!r}: reasoning-gym has no such task{near} "
                f"({len(known)} are known, such as {', '.join(sorted(known)[:6])})"
            )
        try:
            self._dataset = gym.create_dataset(name, size=size, seed=seed, **options)
        except (TypeError, ValueError, AssertionError) as error:
            raise UserError(f"task.options for {name}: {error}") from error
        self.size = size

    def example(self, index: int) -> Example:
        entry = self._dataset[index]
        answer = entry.get("answer")
        return Example(index, entry["question"], None if answer is None else str(answer), entry)

    def score(self, example: Example, answer: Answer) -> float:
        return float(self._dataset.score_answer(answer.extracted, entry=dict(example.entry)))


def _load() -> tuple[Any, list[str]]:
    try:
        with warnings.catch_warnings():
            # A dependency of reasoning-gym compares with `is`; nothing that a user can mend.
            warnings.simplefilter("ignore", SyntaxWarning)
            import reasoning_gym
            from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise UserError(
            f"task.kind=reasoning_gym needs the package reasoning-gym ({error}): "
            "pip install 'mx-rl[gym]'"
        ) from error
    return reasoning_gym, list(DATASETS)
