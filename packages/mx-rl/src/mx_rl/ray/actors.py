"""The actor classes: a worker, in a process that writes everything it prints into one log file."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from typing import Any

from mx_rl.config import Precision, SyncConfig
from mx_rl.types import SyncResult
from mx_rl.workers import LearnerSpec, LearnerWorker, SamplerSpec, SamplerWorker


def log_to(path: str) -> None:
    """Send this process's standard output and error, C code's too, to the end of ``path``."""
    sys.stdout.flush()
    sys.stderr.flush()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        force=True,
    )


class SamplerActor(SamplerWorker):
    """``SamplerWorker`` in a process of its own."""

    def __init__(self, spec: SamplerSpec, log_path: str) -> None:
        log_to(log_path)
        super().__init__(spec)

    def pid(self) -> int:
        return os.getpid()


class LearnerActor(LearnerWorker):
    """``LearnerWorker`` in a process of its own."""

    def __init__(self, spec: LearnerSpec, log_path: str) -> None:
        log_to(log_path)
        super().__init__(spec)

    def pid(self) -> int:
        return os.getpid()

    def sync_with(
        self, sampler: list[Any], precision: Precision, config: SyncConfig, seed: int
    ) -> SyncResult:
        """``sampler``: its actor handle, in a list, because Ray would resolve a bare argument."""
        call = actor_call(sampler[0], timeout_s=config.timeout_s)
        return self.sync(call, precision, config, seed)


def actor_call(handle: Any, *, timeout_s: float) -> Callable[[bytes], bytes]:
    """The control channel to a sampler actor, with the failures that ``SinkClient`` expects.

    Raises ConnectionError when the actor is gone, TimeoutError when it does not answer in time.
    """
    import ray
    from ray.exceptions import GetTimeoutError, RayActorError

    def call(message: bytes) -> bytes:
        try:
            answer: bytes = ray.get(handle.sink_call.remote(message), timeout=timeout_s)
        except GetTimeoutError as error:
            raise TimeoutError(f"no answer within {timeout_s} s") from error
        except RayActorError as error:
            raise ConnectionError("the sampler's process is gone") from error
        return answer

    return call
