"""What a task is, and how an answer is cut out of a completion."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

_NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?|\d+(?:\.\d+)?")
_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Example:
    """A question; ``answer`` if the task knows one; ``entry``: whatever its scorer wants to see."""

    index: int
    question: str
    answer: str | None = None
    entry: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Answer:
    """A completion on its way to a score: its tokens, its whole text, and what was cut out."""

    tokens: tuple[int, ...]
    text: str
    extracted: str | None


class Task(Protocol):
    """``example(i)`` for 0 <= i < size is always the same; ``score`` is a finite number."""

    @property
    def size(self) -> int: ...
    def example(self, index: int) -> Example: ...
    def score(self, example: Example, answer: Answer) -> float: ...


def extract_answer(text: str, *, how: str) -> str | None:
    """The part of a completion that is scored; None where there is none.

    ``last_number``: the last decimal number, without thousands separators; ``answer_tag``: what
    stands in the last <answer>...</answer>; ``text``: all of it. Surrounding space is cut.
    """
    if how == "text":
        return text.strip()
    if how == "answer_tag":
        tags = _TAG.findall(text)
        return tags[-1].strip() if tags else None
    if how != "last_number":
        raise ValueError(f"extract={how!r}; expected last_number, answer_tag or text")
    numbers = _NUMBER.findall(text)
    return numbers[-1].replace(",", "") if numbers else None
