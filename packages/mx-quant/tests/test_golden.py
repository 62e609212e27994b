"""Every implementation equals the vectors made by exact rational arithmetic."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from mx_quant import golden, quantize, reference
from mx_quant.report import compare

BLOCKS, DECODINGS = golden.load()
MAKER = Path(__file__).parent.parent / "golden" / "make.py"


def test_the_vectors_cover_what_they_should() -> None:
    assert sum(len(b.x) for b in BLOCKS) > 1000
    assert {b.x.dtype for b in BLOCKS} == {torch.bfloat16, torch.float16, torch.float32}
    canonical = torch.cat([b.expected.scales for b in BLOCKS if b.name.startswith("mxfp8-")])
    assert {0, 1, 2, 254} <= set(canonical.flatten().tolist())


@pytest.mark.parametrize("blocks", BLOCKS, ids=lambda b: b.name)
def test_the_reference_equals_the_golden_blocks(blocks: golden.Blocks) -> None:
    grid = blocks.expected.grid
    result = compare(reference.quantize(blocks.x, grid=grid), blocks.expected)
    assert result.same_bytes, result


@pytest.mark.parametrize("blocks", BLOCKS, ids=lambda b: b.name)
def test_what_the_registry_chooses_equals_the_golden_blocks(blocks: golden.Blocks) -> None:
    grid, expected = blocks.expected.grid, blocks.expected
    result = compare(quantize(blocks.x, grid=grid), expected)
    assert result.same_bytes, result
    column = quantize(blocks.x.t().contiguous(), grid=grid, axis=-2)
    assert torch.equal(column.element_bytes.t(), expected.element_bytes)
    assert torch.equal(column.scales.t(), expected.scales)


@pytest.mark.parametrize("blocks", BLOCKS, ids=lambda b: b.name)
def test_each_backend_equals_the_golden_blocks(backend: ModuleType, blocks: golden.Blocks) -> None:
    from mx_quant import eager, native

    grid = blocks.expected.grid
    if backend is not eager and not native.supports_grid(grid):
        pytest.skip(f"the kernels do not serve grid {grid.id}")
    result = compare(backend.quantize(blocks.x, grid=grid, axis=-1), blocks.expected)
    assert result.same_bytes, result


@pytest.mark.parametrize("case", DECODINGS, ids=lambda d: d.name)
def test_decoding_equals_the_golden_values(backend: ModuleType, case: golden.Decoding) -> None:
    for decode in (backend.dequantize, reference.dequantize):
        got = decode(case.t, dtype=torch.float32)
        same = (got.view(torch.int32) == case.values.view(torch.int32)) | case.values.isnan()
        assert bool(same.all())
        assert torch.equal(got.isnan(), case.values.isnan())


@pytest.mark.skipif(not MAKER.is_file(), reason="the source tree's golden/make.py is not here")
def test_the_script_makes_the_file_that_is_shipped() -> None:
    made = subprocess.run(
        [sys.executable, str(MAKER)], capture_output=True, text=True, check=True, timeout=300
    )
    assert made.stdout == golden.path().read_text(encoding="utf-8")
