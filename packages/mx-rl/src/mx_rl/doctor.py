"""What this machine and this environment have, and what to do about what is missing."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table

from mx_rl import compat
from mx_rl.plugins import GROUPS, adapters
from mx_rl.report import make_console

NEEDED_SHM_BYTES = 48 * 2**20
NEEDED_MEMORY_BYTES = 8 * 2**30


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the examination; ``remedy`` is given unless the verdict is "ok"."""

    what: str
    verdict: Literal["ok", "note", "problem"]
    found: str
    remedy: str = ""


def doctor(console: Console | None = None) -> int:
    """Print what was found; returns 1 if something prevents a run, else 0."""
    findings = list(examine())
    table = Table(title="mx-rl doctor", title_justify="left")
    for name in ("", "what", "found", "remedy"):
        table.add_column(name, overflow="fold")
    for finding in findings:
        table.add_row(finding.verdict, finding.what, finding.found, finding.remedy)
    (console or make_console()).print(table)
    return 1 if any(finding.verdict == "problem" for finding in findings) else 0


def examine() -> Iterator[Finding]:
    """All findings. A check that itself fails is a finding."""
    checks: tuple[Callable[[], Iterator[Finding]], ...] = (
        _python,
        _versions,
        _adapters,
        _processor,
        _memory,
        _compute,
        _allocator,
        _cache,
    )
    for check in checks:
        try:
            yield from check()
        except Exception as error:
            yield Finding(
                check.__name__.strip("_"),
                "problem",
                f"{type(error).__name__}: {error}",
                "this check itself failed; the message says why",
            )


def _python() -> Iterator[Finding]:
    yield Finding("python", "ok", platform.python_version())
    if sys.dont_write_bytecode:
        yield Finding(
            "bytecode cache",
            "note",
            "switched off",
            "every process compiles all its imports anew, which takes longer than the rest of a "
            "start: unset PYTHONDONTWRITEBYTECODE",
        )


def _versions() -> Iterator[Finding]:
    for name, version in compat.versions().items():
        yield Finding(name, "ok", version)


def _adapters() -> Iterator[Finding]:
    remedies = {"learner": "install mx-megatron", "sampler": "install mx-vllm or mx-sglang"}
    for role, group in GROUPS.items():
        found = adapters(role)
        if not found:
            yield Finding(f"{role}s", "problem", f"none ({group})", remedies[role])
        for name, point in found.items():
            try:
                point.load()
            except Exception as error:
                yield Finding(
                    f"{role} {name}",
                    "problem",
                    f"{type(error).__name__}: {error}",
                    f"{point.value} is installed without a working engine: install its extra",
                )
            else:
                yield Finding(f"{role} {name}", "ok", point.value)


def _processor() -> Iterator[Finding]:
    flags = compat.cpu_flags()
    known = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "amx_tile")
    present = [flag for flag in known if flag in flags]
    cores = len(os.sched_getaffinity(0))
    verdict: Literal["ok", "note"] = "ok" if cores >= 2 else "note"
    remedy = "" if cores >= 2 else "two cores or more keep the demo under twenty minutes"
    yield Finding(
        "processor", verdict, f"{cores} cores; {', '.join(present) or 'none known'}", remedy
    )


def _memory() -> Iterator[Finding]:
    import psutil

    free = psutil.virtual_memory().available
    enough = free >= NEEDED_MEMORY_BYTES
    yield Finding(
        "memory",
        "ok" if enough else "note",
        f"{free / 2**30:.1f} GiB available",
        "" if enough else "SmolLM2 wants about 8 GiB; a smaller optimizer.micro_batch_tokens helps",
    )
    shared = shutil.disk_usage("/dev/shm").free if Path("/dev/shm").is_dir() else 0
    enough = shared >= NEEDED_SHM_BYTES
    yield Finding(
        "shared memory",
        "ok" if enough else "problem",
        f"{shared / 2**20:.0f} MiB free in /dev/shm",
        "" if enough else "enlarge it (containers: --shm-size=1g), or set sync.bucket_mib lower",
    )


def _compute() -> Iterator[Finding]:
    import torch

    from mx_quant import backend, compute_dtype

    yield Finding("quantizer", "ok", backend())
    yield Finding("compute type of emulated GEMMs", "ok", str(compute_dtype()))
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        yield Finding(
            "GPUs",
            "note",
            ", ".join(names),
            "roles see none unless ray.gpus is set, such as --set ray.gpus=1",
        )


def _allocator() -> Iterator[Finding]:
    found = compat.find_tcmalloc()
    if found is None:
        yield Finding(
            "allocator",
            "note",
            "glibc, with settings that keep large blocks",
            "libtcmalloc-minimal4 (Debian, Ubuntu) makes updates faster; it is used when found",
        )
    else:
        yield Finding("allocator", "ok", found)


def _cache() -> Iterator[Finding]:
    path = compat.cache_directory()
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    writable = os.access(existing, os.W_OK)
    free = shutil.disk_usage(existing).free
    good = writable and free > 2**30
    yield Finding(
        "model cache",
        "ok" if good else "problem",
        f"{path} ({free / 2**30:.1f} GiB free{'' if writable else ', not writable'})",
        "" if good else "set MX_CACHE to a directory that is writable and has 1 GiB free",
    )
