import pytest
import torch
from tiny import tiny_config

import mx_quant
from mx_megatron.architecture import parse_architecture
from mx_megatron.layout import Fusion, fuse, split, split_mx

ARCH = parse_architecture(tiny_config(), where="test")
SHAPES = {
    Fusion.SINGLE: [(128, 256)],
    Fusion.QKV: [(128, 128), (64, 128), (64, 128)],
    Fusion.GATE_UP: [(256, 128), (256, 128)],
}


def parts_of(fusion: Fusion) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(s, generator=generator).to(torch.bfloat16) for s in SHAPES[fusion]]


@pytest.mark.parametrize("fusion", list(Fusion))
def test_split_is_the_inverse_of_fuse(fusion: Fusion) -> None:
    parts = parts_of(fusion)
    back = split(fuse(parts, fusion, ARCH), fusion, ARCH)
    assert all(torch.equal(a, b) for a, b in zip(parts, back, strict=True))
    assert all(part.is_contiguous() for part in back)


def test_qkv_rows_are_interleaved_by_key_value_group() -> None:
    q, k, v = parts_of(Fusion.QKV)
    fused = fuse([q, k, v], Fusion.QKV, ARCH)
    # Two query heads of 32 rows for each of two groups, then the group's key and value head.
    expected = torch.cat([q[:64], k[:32], v[:32], q[64:], k[32:], v[32:]])
    assert torch.equal(fused, expected)


@pytest.mark.parametrize("fusion", list(Fusion))
def test_splitting_quantized_rows_equals_quantizing_the_split_rows(fusion: Fusion) -> None:
    parts = parts_of(fusion)
    fused = mx_quant.quantize(fuse(parts, fusion, ARCH), grid=mx_quant.MXFP8)
    for ours, part in zip(split_mx(fused, fusion, ARCH), parts, strict=True):
        expected = mx_quant.quantize(part, grid=mx_quant.MXFP8)
        assert mx_quant.digest(ours) == mx_quant.digest(expected)


def test_columnwise_bytes_cannot_be_split_by_rows() -> None:
    columnwise = mx_quant.quantize(parts_of(Fusion.SINGLE)[0], grid=mx_quant.MXFP8, axis=-2)
    with pytest.raises(ValueError, match="within one row"):
        split_mx(columnwise, Fusion.SINGLE, ARCH)
