"""Calls to one actor, with its failures told in the loop's own terms."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mx_rl.errors import RoleDied, RoleFailed, UserError
from mx_sync import SyncError

log = logging.getLogger(__name__)

_LOG_LINES = 12
_GIVEN_WRONG = (UserError, ValueError, FileNotFoundError, NotImplementedError)
"""What adapters raise, while starting, for settings and models that they cannot use."""


class Role:
    """One actor process: the learner's or the sampler's."""

    def __init__(
        self,
        name: str,
        kind: type,
        spec: object,
        *,
        log_path: Path,
        environment: Mapping[str, str],
        gpus: float,
        timeout_s: float,
    ) -> None:
        import ray

        self.name = name
        self.log_path = log_path
        self._ray: Any = ray
        self._timeout_s = timeout_s
        actor: Any = ray.remote(kind)
        self.handle: Any = actor.options(
            num_cpus=1,
            num_gpus=gpus,
            max_restarts=0,
            runtime_env={"env_vars": dict(environment)},
        ).remote(spec, str(log_path))

    def call(self, method: str, *arguments: object, setup: bool = False) -> Any:
        """The method's result. Raises as ``end``."""
        return self.end(self.begin(method, *arguments), method, setup=setup)

    def begin(self, method: str, *arguments: object) -> Any:
        """Start a call; give the result to ``end``."""
        return getattr(self.handle, method).remote(*arguments)

    def end(self, reference: Any, doing: str, *, setup: bool = False) -> Any:
        """Wait for a call.

        Raises:
            RoleDied: the process is gone, or does not answer within the time limit.
            UserError: ``setup``, and the adapter refused what it was given.
            SyncError: a sync failed; its own type.
            RoleFailed: anything else that the role raised.
        """
        from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

        try:
            return self._ray.get(reference, timeout=self._timeout_s)
        except GetTimeoutError as error:
            raise self._died(
                f"did not finish {doing!r} within ray.call_timeout_s={self._timeout_s:g} s"
            ) from error
        except RayActorError as error:
            raise self._died(f"died during {doing!r}") from error
        except RayTaskError as error:
            raise self._failed(error.cause, str(error), doing, setup) from error

    def require_alive(self, doing: str) -> None:
        """Raises RoleDied if the process is gone."""
        self.end(self.begin("pid"), doing)

    def end_process(self) -> None:
        """Ask the role to close, then end its process whatever it answered."""
        from ray.exceptions import RayError

        try:
            self._ray.get(self.handle.close.remote(), timeout=20)
        except RayError as error:
            log.debug("%s did not close by itself: %s", self.name, error)
        self._ray.kill(self.handle)

    def _died(self, what: str) -> RoleDied:
        return RoleDied(
            f"the {self.name}'s process {what}. If it was killed, look for lack of memory (the "
            "kernel's log: out-of-memory) and reduce sampling.max_num_seqs, "
            "optimizer.micro_batch_tokens or sampling.kv_cache_gib; then go on from the last "
            f"checkpoint with mx-rl train --resume RUN_DIR. Its log: {self.log_path}{self._tail()}",
            role=self.name,
        )

    def _failed(self, cause: object, trace: str, doing: str, setup: bool) -> BaseException:
        if isinstance(cause, UserError):
            return cause
        if isinstance(cause, SyncError):
            return cause
        if setup and isinstance(cause, _GIVEN_WRONG):
            return UserError(f"the {self.name} refused to start: {cause}")
        log.error("%s failed in %s:\n%s", self.name, doing, trace)
        return RoleFailed(
            f"the {self.name} failed during {doing!r}: {type(cause).__name__}: {cause}. "
            f"Its log: {self.log_path}"
        )

    def _tail(self) -> str:
        if not self.log_path.is_file():
            return ""
        lines = self.log_path.read_text(encoding="utf-8", errors="replace").splitlines()
        shown = lines[-_LOG_LINES:]
        return "; its last lines:\n  " + "\n  ".join(shown) if shown else ""
