"""Failures that a user can mend, told in one message."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Something that was given is wrong: the command line prints the message and exits with 2."""


class RoleDied(RuntimeError):
    """The process of the learner or the sampler is gone.

    ``role``: "learner" or "sampler". The message holds the last lines of that process's log.
    """

    def __init__(self, message: str, *, role: str) -> None:
        super().__init__(message)
        self.role = role

    def __reduce__(self) -> tuple[object, ...]:
        return _role_died, (str(self), self.role)


def _role_died(message: str, role: str) -> RoleDied:
    return RoleDied(message, role=role)


class RoleFailed(RuntimeError):
    """The learner or the sampler is alive and raised; the message is its own, with its role."""


class Interrupted(RuntimeError):
    """The user asked to stop, and the current step was given up before it changed any weight."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` for a near miss, else an empty string."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""
