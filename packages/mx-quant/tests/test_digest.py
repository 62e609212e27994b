import pytest
import torch
import xxhash

from mx_quant.digest import digest
from mx_quant.grids import MXFP8, MXFP8_E5M2, MXFP8_FLOOR
from mx_quant.quantize import quantize
from mx_quant.tensor import MXTensor

X = torch.randn(64, 64, generator=torch.Generator().manual_seed(0)).bfloat16()


def test_the_digest_is_xxh3_over_header_elements_and_scales() -> None:
    t = quantize(X, grid=MXFP8)
    header = b"mx1|mxfp8|-1|(64, 64)|e4m3"
    parts = t.element_bytes.numpy().tobytes() + t.scales.numpy().tobytes()
    assert digest(t) == xxhash.xxh3_128(header + parts).hexdigest()
    assert len(digest(t)) == 32


def test_one_flipped_bit_changes_it() -> None:
    t = quantize(X, grid=MXFP8)
    before = digest(t)
    for part in (t.element_bytes, t.scales):
        part.view(-1)[17] ^= 1
        assert digest(t) != before
        part.view(-1)[17] ^= 1
    assert digest(t) == before


def test_grid_axis_shape_and_dtype_are_part_of_it() -> None:
    codes, scales = torch.zeros(64, 64, dtype=torch.uint8), torch.zeros(64, 2, dtype=torch.uint8)
    digests = {
        digest(MXTensor.from_bytes(codes, scales, grid=g)) for g in (MXFP8, MXFP8_FLOOR, MXFP8_E5M2)
    }
    digests.add(digest(MXTensor.from_bytes(codes, scales.t().contiguous(), grid=MXFP8, axis=-2)))
    digests.add(digest(torch.zeros(64, 32).bfloat16()))
    digests.add(digest(torch.zeros(32, 64).bfloat16()))
    digests.add(digest(torch.zeros(32, 64).half()))
    assert len(digests) == 7


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16], ids=str)
def test_views_hash_as_their_copies(dtype: torch.dtype) -> None:
    x = X.to(dtype)
    assert digest(x.t()) == digest(x.t().contiguous())
    t = quantize(x, grid=MXFP8)
    assert digest(t.rows(3, 9)) == digest(quantize(x[3:9], grid=MXFP8))


def test_parameters_and_empty_tensors_can_be_hashed() -> None:
    assert digest(torch.nn.Parameter(X)) == digest(X)
    assert digest(X[:0]) != digest(X[:1])
