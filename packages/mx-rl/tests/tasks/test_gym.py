from __future__ import annotations

import pytest

from mx_rl.config import TaskConfig
from mx_rl.errors import UserError
from mx_rl.tasks import Answer, build_task
from mx_rl.tasks.base import Task

pytest.importorskip("reasoning_gym")

OPTIONS = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}


def make(seed: int = 0, **changes: object) -> Task:
    fields = {"dataset": "chain_sum", "options": OPTIONS, "size": 20, **changes}
    return build_task(TaskConfig.model_validate(fields), seed=seed)


def test_the_task_scores_with_reasoning_gyms_own_scorer() -> None:
    task = make()
    example = task.example(3)
    assert example.answer is not None
    assert task.score(example, Answer((), "", example.answer)) == 1.0
    assert task.score(example, Answer((), "", "999")) < 0.5
    assert task.score(example, Answer((), "", None)) == 0.0


def test_examples_are_reproducible_and_follow_the_seed() -> None:
    questions = [[make(seed).example(i).question for i in range(20)] for seed in (0, 0, 1)]
    assert questions[0] == questions[1]
    assert questions[0] != questions[2]


def test_an_unknown_task_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(UserError, match="did you mean 'chain_sum'"):
        make(dataset="chain_sums")


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(UserError, match="task.options for chain_sum"):
        make(options={"max_word": 3})
