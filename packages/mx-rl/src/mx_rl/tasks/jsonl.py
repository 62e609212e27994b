"""A data set of questions and answers in JSON lines; answers are compared as mathematics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mx_rl.errors import UserError
from mx_rl.tasks.base import Answer, Example


class JsonlTask:
    """One JSON object a line. The score is 1.0 if math-verify finds the answers equal, else 0.0.

    Raises UserError with file and line for anything that is not an object with both fields.
    """

    def __init__(self, path: str, *, question_field: str, answer_field: str, verify: bool) -> None:
        self._entries = _read(Path(path), question_field, answer_field)
        self._question_field, self._answer_field = question_field, answer_field
        self.size = len(self._entries)
        self._math: Any = _math_verify() if verify else None

    def example(self, index: int) -> Example:
        entry = self._entries[index]
        question = str(entry[self._question_field])
        return Example(index, question, str(entry[self._answer_field]), entry)

    def score(self, example: Example, answer: Answer) -> float:
        if not answer.extracted:
            return 0.0
        # No timeouts: math-verify sets them by signals, which only a main thread may use.
        gold = self._math.parse(f"${example.answer}$", parsing_timeout=None)
        found = self._math.parse(answer.extracted, parsing_timeout=None)
        if not found:
            found = self._math.parse(f"${answer.extracted}$", parsing_timeout=None)
        return 1.0 if self._math.verify(gold, found, timeout_seconds=None) else 0.0


def _math_verify() -> Any:
    try:
        import math_verify
    except ImportError as error:
        raise UserError(
            f"task.kind=jsonl needs the package math-verify ({error}): pip install 'mx-rl[math]', "
            "or give task.reward=module:function"
        ) from error
    return math_verify


def _read(path: Path, *fields: str) -> list[dict[str, Any]]:
    if not path.is_file():
        raise UserError(f"task.path={str(path)!r}: no such file")
    entries = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(f"{path}:{number}: not JSON ({error})") from error
        missing = [f for f in fields if not isinstance(entry, dict) or f not in entry]
        if missing:
            raise UserError(
                f"{path}:{number}: expected an object with {' and '.join(map(repr, fields))}; "
                f"missing {', '.join(map(repr, missing))}. Set task.question_field and "
                "task.answer_field to the file's names"
            )
        entries.append(entry)
    if not entries:
        raise UserError(f"task.path={str(path)!r}: the file has no examples")
    return entries
