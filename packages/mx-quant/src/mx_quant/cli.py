"""The command line: ``mx-quant doctor``."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
from collections.abc import Sequence

import torch

from mx_quant import native
from mx_quant.gemm import compute_dtype, selected
from mx_quant.quantize import backend


def doctor() -> dict[str, str]:
    """What mx-quant runs on here, by topic."""
    found = native.load()
    names = ([os.environ["CC"].split()[0]] if os.environ.get("CC") else []) + ["cc", "gcc", "clang"]
    compiler = next((path for name in names if (path := shutil.which(name))), "none found")
    return {
        "backend": backend(),
        "instruction_set": found.level or "none: no native kernels",
        "machine": f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()} in torch",
        "compiler": compiler,
        "gemm": selected().value,
        "compute_dtype": str(compute_dtype()).removeprefix("torch."),
        "threads": str(torch.get_num_threads()),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "advice": _advice(found, compiler),
    }


def _advice(found: native.Native, compiler: str) -> str:
    if found.lib is not None:
        return "nothing to do"
    if compiler == "none found":
        return "install a C compiler (gcc or clang), then reinstall mx-quant for the fast kernels"
    return "reinstall mx-quant: a C compiler is here now, and the kernels are built at installation"


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of ``mx-quant``; returns the exit status."""
    parser = argparse.ArgumentParser(prog="mx-quant", description="MXFP8 numerics, exactly.")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("doctor", help="say which backend and GEMM run here, and why")
    command.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    report = doctor()
    if options.json:
        sys.stdout.write(json.dumps(report) + "\n")
    else:
        width = max(map(len, report))
        for topic, value in report.items():
            sys.stdout.write(f"{topic:<{width}}  {value}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
