"""A small model with every form that travels: on two grids, bf16, fp32, a scalar, a tied name."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from mx_quant.grids import FP8_BLOCK_128X128, MXFP8
from mx_quant.quantize import quantize
from mx_sync import TensorSource, WeightVersion

ALIAS = "lm_head.weight"
RUN = "run-a"


def small_source(step: int, *, run: str = RUN) -> TensorSource:
    torch.manual_seed(step)
    tensors = {
        "embed.weight": torch.randn(40, 64).bfloat16(),
        "q.weight": quantize(torch.randn(64, 96).bfloat16(), grid=MXFP8),
        "experts.weight": quantize(torch.randn(2, 32, 64).bfloat16(), grid=MXFP8),
        "block.weight": quantize(torch.randn(130, 200).bfloat16(), grid=FP8_BLOCK_128X128),
        "norm.weight": torch.randn(7).bfloat16(),
        "scale": torch.tensor(float(step)),
    }
    return TensorSource(
        tensors, version=WeightVersion(run, step), aliases=[(ALIAS, "embed.weight")]
    )


@pytest.fixture
def make_source() -> Callable[..., TensorSource]:
    return small_source


@pytest.fixture
def shm() -> Iterator[Path]:
    """A folder of its own in shared memory, empty again at the end."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="mx-sync-test-") as path:
        yield Path(path)
        assert list(Path(path).iterdir()) == []
