"""One engine per process; every scenario runs once and its facts serve several tests."""

from __future__ import annotations

import os
from pathlib import Path

import models
import pytest
import scenarios
from processes import run

# For the processes that are forked: quiet, two threads, waiting without spinning.
os.environ.update(
    VLLM_LOGGING_LEVEL="ERROR",
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_NO_USAGE_STATS="1",
    HF_HUB_OFFLINE="1",
    OMP_NUM_THREADS="2",
    OMP_WAIT_POLICY="passive",
)

COMBINATIONS = [
    ("llama", True, "mxfp8"),
    ("llama", True, "bf16"),
    ("qwen3", False, "mxfp8"),
    ("qwen3", False, "bf16"),
]


@pytest.fixture(scope="session", params=COMBINATIONS, ids=lambda c: f"{c[0]}-{c[2]}")
def live(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> scenarios.Facts:
    """What happened on an engine that was booted on A and updated, and on fresh engines."""
    kind, tied, precision = request.param
    root: Path = tmp_path_factory.mktemp(f"{kind}-{precision}")
    cfg = models.config(kind, tied=tied)
    for name, seed in (("a", 1), ("b", 2)):
        tensors = models.weights(cfg, seed=seed)
        models.write(root / name, cfg, models.on_grid(tensors) if precision == "mxfp8" else tensors)
    facts: scenarios.Facts = run(scenarios.updated, root, kind, tied, precision)
    facts |= {"fresh": run(scenarios.fresh, root / "b", precision), "kind": kind}
    return facts
