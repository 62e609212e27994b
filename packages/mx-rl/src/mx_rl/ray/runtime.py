"""Starting Ray, and the environment of the processes that it starts."""

from __future__ import annotations

import logging
import math
import os
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from mx_rl import compat
from mx_rl.config import RayConfig
from mx_rl.errors import RoleFailed, UserError

log = logging.getLogger(__name__)

_QUIET: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
_ATTEMPTS = 3
_OBJECT_STORE_BYTES = 128 * 2**20
"""Weights do not go through Ray's object store; batches of tokens and log-probabilities do."""


@dataclass(frozen=True, slots=True)
class ChildEnvironment:
    """Variables for the roles' processes, and in words which allocator they get."""

    variables: dict[str, str]
    allocator: str


def child_environment(*, threads: int, tcmalloc: str | None) -> ChildEnvironment:
    """What the learner's and the sampler's processes are started with.

    The C allocator decides the speed of training on a CPU: by default glibc gives every large block
    back to the kernel at once and gets it again page by page. tcmalloc keeps blocks; without it
    glibc is told to. OpenMP threads sleep between parallel regions, because two processes take
    turns on the same cores.
    """
    variables = {
        "OMP_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "passive",
        "RAY_USAGE_STATS_ENABLED": "0",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if tcmalloc is not None:
        libraries = [tcmalloc, *(lib for lib in compat.preloaded() if lib != tcmalloc)]
        variables["LD_PRELOAD"] = ":".join(libraries)
        return ChildEnvironment(variables, f"tcmalloc ({tcmalloc})")
    variables |= {
        # No block is mapped by itself, and the top of the heap is never given back.
        "MALLOC_MMAP_MAX_": "0",
        "MALLOC_TRIM_THRESHOLD_": str(2**40),
        "MALLOC_TOP_PAD_": str(64 * 2**20),
    }
    return ChildEnvironment(
        variables, "glibc, told to keep large blocks (libtcmalloc-minimal4 would be faster)"
    )


class RayRuntime:
    """Ray for one run: a private one on this machine, or a cluster that is already there.

    Close it, or use it as a context manager: a private Ray ends with it, processes and all.
    """

    def __init__(self, config: RayConfig) -> None:
        compat.usage_reports_off()
        import ray

        if ray.is_initialized():
            raise RuntimeError("Ray is already running in this process; one run at a time")
        self._ray: Any = ray
        self.threads = config.threads or len(os.sched_getaffinity(0))
        self.environment = child_environment(threads=self.threads, tcmalloc=compat.find_tcmalloc())
        if config.address is None:
            self._start_private(config)
        else:
            self._join(config.address)
        log.info(
            "ray: %s; each role: %d threads, allocator: %s",
            config.address or "private, on this machine",
            self.threads,
            self.environment.allocator,
        )

    def _start_private(self, config: RayConfig) -> None:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self._ray.init(
                    num_cpus=2,
                    num_gpus=math.ceil(2 * config.gpus),
                    include_dashboard=False,
                    object_store_memory=_OBJECT_STORE_BYTES,
                    _node_ip_address="127.0.0.1",
                    # Ray would run its workers at nice 15: here they are what the machine is for.
                    _system_config={"worker_niceness": 0},
                    **_QUIET,
                )
                return
            except Exception as error:  # Ray has no type of its own for this
                self._ray.shutdown()
                if attempt == _ATTEMPTS:
                    raise RoleFailed(
                        f"Ray did not start in {attempt} attempts: {error} Its logs: "
                        "/tmp/ray/session_latest/logs. Ray gives its own processes 15 seconds to "
                        "come up: see whether the machine is busy, or short of memory or files"
                    ) from error
                log.warning("Ray did not start (attempt %d): %s", attempt, error)

    def _join(self, address: str) -> None:
        try:
            self._ray.init(address=address, **_QUIET)
        except ConnectionError as error:
            raise UserError(
                f"ray.address={address!r}: no Ray cluster answers there ({error}). Start one with "
                "`ray start --head`, or leave ray.address out"
            ) from error

    def close(self) -> None:
        self._ray.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
