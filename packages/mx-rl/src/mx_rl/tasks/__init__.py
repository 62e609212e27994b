"""Where prompts come from and what a completion is worth."""

from __future__ import annotations

from mx_rl.tasks.base import Answer, Example, Task, extract_answer
from mx_rl.tasks.build import build_task
from mx_rl.tasks.gym import GymTask
from mx_rl.tasks.jsonl import JsonlTask
from mx_rl.tasks.prompts import PromptRenderer
from mx_rl.tasks.target import TargetTokens

__all__ = [
    "Answer",
    "Example",
    "GymTask",
    "JsonlTask",
    "PromptRenderer",
    "TargetTokens",
    "Task",
    "build_task",
    "extract_answer",
]
