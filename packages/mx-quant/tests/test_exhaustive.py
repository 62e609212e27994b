"""Millions of random blocks: every backend against the reference. Slow; `exhaustive` runs it."""

from types import ModuleType

import pytest
import torch

from mx_quant import reference
from mx_quant.grids import MXFP8, MXFP8_E5M2
from mx_quant.tensor import MXTensor

BLOCKS = 10_000_000
CHUNK = 250_000
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def random_blocks(kind: str, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """``[CHUNK, 32]``: heavy-tailed, in the subnormal range, or with NaN payloads and Inf."""
    shape = (CHUNK, 32)
    x = torch.randn(shape, generator=generator)
    if kind == "heavy":
        tail = torch.randn(shape, generator=generator).mul_(4)
        center = torch.randn(CHUNK, 1, generator=generator).mul_(24)
        return x.mul_(torch.exp2((tail + center).clamp_(-140, 120))).to(dtype)
    if kind == "subnormal":
        low = -12 if dtype == torch.float16 else -110
        center = torch.randint(low - 40, low, (CHUNK, 1), generator=generator).float()
        return x.double().mul_(torch.exp2(center.double())).to(dtype)
    bits = torch.int32 if dtype == torch.float32 else torch.int16
    info = torch.iinfo(bits)
    raw = torch.randint(info.min, info.max + 1, shape, generator=generator).to(bits).view(dtype)
    return torch.where(torch.rand(shape, generator=generator) < 0.1, raw, x.to(dtype))


def same(a: MXTensor, b: MXTensor) -> bool:
    return torch.equal(a.element_bytes, b.element_bytes) and torch.equal(a.scales, b.scales)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["heavy", "subnormal", "special"])
@pytest.mark.parametrize("name", DTYPES)
def test_ten_million_random_blocks_equal_the_reference(
    backend: ModuleType, kind: str, name: str
) -> None:
    # Nine combinations of kind and dtype share the ten million blocks of a backend.
    generator = torch.Generator().manual_seed(sum(map(ord, kind + name)))
    for index in range(-(-BLOCKS // 9 // CHUNK)):
        x = random_blocks(kind, DTYPES[name], generator)
        grid = MXFP8_E5M2 if index % 4 == 3 else MXFP8
        expected = reference.quantize(x, grid=grid)
        assert same(backend.quantize(x, grid=grid, axis=-1), expected)
        across = backend.quantize(x.t().contiguous(), grid=grid, axis=-2)
        assert torch.equal(across.element_bytes.t(), expected.element_bytes)
        assert torch.equal(across.scales.t(), expected.scales)
        values = reference.dequantize(expected, dtype=x.dtype)
        bits = torch.int32 if x.dtype == torch.float32 else torch.int16
        for got in (
            backend.dequantize(expected, dtype=x.dtype),
            backend.fake_quantize(x, grid=grid, axis=-1, dtype=x.dtype),
        ):
            equal = (got.view(bits) == values.view(bits)) | (got.isnan() & values.isnan())
            assert bool(equal.all())
