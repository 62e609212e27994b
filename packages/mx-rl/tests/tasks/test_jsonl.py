from __future__ import annotations

import json
from pathlib import Path

import pytest

from mx_rl.config import TaskConfig
from mx_rl.errors import UserError
from mx_rl.tasks import Answer, build_task
from mx_rl.tasks.base import Example


def write(path: Path, *rows: object) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_answers_are_compared_as_mathematics(tmp_path: Path) -> None:
    pytest.importorskip("math_verify")
    path = write(tmp_path / "d.jsonl", {"question": "a half?", "answer": "1/2"})
    task = build_task(TaskConfig(kind="jsonl", path=path), seed=0)
    example = task.example(0)
    assert example.question == "a half?"
    assert task.score(example, Answer((), "", "0.5")) == 1.0
    assert task.score(example, Answer((), "", "$\\frac{2}{4}$")) == 1.0
    assert task.score(example, Answer((), "", "0.4")) == 0.0
    assert task.score(example, Answer((), "", None)) == 0.0


def test_a_line_that_is_not_json_is_named(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text('{"question": "q", "answer": "a"}\n\n{oops\n')
    with pytest.raises(UserError, match=r"d\.jsonl:3: not JSON"):
        build_task(TaskConfig(kind="jsonl", path=str(path), reward="math:isfinite"), seed=0)


def test_a_missing_field_is_named_with_the_setting_that_mends_it(tmp_path: Path) -> None:
    path = write(tmp_path / "d.jsonl", {"prompt": "q", "answer": "a"})
    with pytest.raises(UserError, match=r"missing 'question'. Set task.question_field"):
        build_task(TaskConfig(kind="jsonl", path=path, reward="math:isfinite"), seed=0)


def test_a_missing_file_and_an_empty_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        build_task(TaskConfig(kind="jsonl", path=str(tmp_path / "none")), seed=0)
    with pytest.raises(UserError, match="no examples"):
        build_task(TaskConfig(kind="jsonl", path=write(tmp_path / "empty")), seed=0)


def test_a_reward_function_of_ones_own_replaces_the_scorer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_reward.py").write_text(
        "def shout(example, answer):\n    return answer.text.isupper()\n"
        "def nothing(example, answer):\n    return None\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    path = write(tmp_path / "d.jsonl", {"question": "q", "answer": "a"})

    def build(reward: str) -> tuple[Example, object]:
        task = build_task(TaskConfig(kind="jsonl", path=path, reward=reward), seed=0)
        return task.example(0), task

    example, task = build("own_reward:shout")
    assert task.score(example, Answer((), "LOUD", None)) == 1.0  # type: ignore[attr-defined]
    assert task.score(example, Answer((), "low", None)) == 0.0  # type: ignore[attr-defined]
    example, task = build("own_reward:nothing")
    with pytest.raises(UserError, match="returned None for example 0; expected a finite number"):
        task.score(example, Answer((), "", None))  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="has no 'shut'; did you mean 'shout'"):
        build("own_reward:shut")
    with pytest.raises(UserError, match="no module 'not_there'"):
        build("not_there:f")
    with pytest.raises(UserError, match="expected module:name"):
        build("not_there")
