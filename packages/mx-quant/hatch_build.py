"""Wheel build hook: compiles the kernels once per instruction-set level, for ctypes.

The libraries do not use Python's or torch's ABI, so the wheel is tagged py3-none-<platform>. The
level is chosen at run time. Without a working C compiler the wheel is pure Python, and
``mx_quant.backend()`` says so.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = ("mxfp8.c", "gemm.c", "pool.c")
FLAGS = (
    "-std=c11",
    "-O3",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fPIC",
    "-shared",
    "-pthread",
    "-fvisibility=hidden",
)
X86_LEVELS = {
    "base": (),
    "avx2": ("-mavx2", "-mfma"),
    "avx512": (
        "-mavx512f",
        "-mavx512bw",
        "-mavx512vl",
        "-mavx512dq",
        "-mfma",
        "-mprefer-vector-width=512",
    ),
}


def levels() -> dict[str, tuple[str, ...]]:
    """Compiler flags by level name; one level where the architecture needs no choice."""
    if platform.machine().lower() in ("x86_64", "amd64"):
        return X86_LEVELS
    return {"base": ()}


def compiler() -> list[str] | None:
    """The C compiler: $CC, else the first of cc, gcc, clang on the path."""
    if os.environ.get("CC"):
        return shlex.split(os.environ["CC"])
    return next(([found] for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)


def build(directory: Path) -> list[Path]:
    """Compile every level into ``directory``; returns the libraries, none without a compiler."""
    command = compiler()
    built: list[Path] = []
    if command is not None and sys.platform != "win32":
        built = _compile(directory, command)
    for stale in set(directory.glob("libmxquant-*.so")) - set(built):
        stale.unlink()
    return built


def _compile(directory: Path, command: list[str]) -> list[Path]:
    # Each library is replaced in one step: a process that starts meanwhile finds a whole one.
    built = []
    for level, flags in levels().items():
        target = directory / f"libmxquant-{level}.so"
        fresh = target.with_suffix(f".{os.getpid()}.tmp")
        sources = [str(directory / name) for name in SOURCES]
        failure = _run([*command, *FLAGS, *flags, *sources, "-o", str(fresh), "-lm"])
        if failure:
            fresh.unlink(missing_ok=True)
            sys.stderr.write(f"mx-quant: level {level} not built:\n{failure}\n")
            continue
        fresh.replace(target)
        built.append(target)
    return built


def _run(command: list[str]) -> str:
    """What went wrong; empty when the compiler succeeded."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        return f"{command[0]} does not run: {error}"
    return (result.stderr or f"exit code {result.returncode}") if result.returncode else ""


class NativeBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Called by hatchling for standard and editable wheels."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile into the source tree and register the libraries as artifacts."""
        directory = Path(self.root) / "src" / "mx_quant" / "kernels"
        if not build(directory):
            sys.stderr.write("mx-quant: no C compiler found, installing without native kernels\n")
            return
        tag = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{tag}"
        build_data["artifacts"].append("src/mx_quant/kernels/libmxquant-*.so")
