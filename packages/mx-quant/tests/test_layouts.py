import pytest
import torch

from mx_quant import layouts
from mx_quant.grids import FP8_BLOCK_1X128, MXFP8
from mx_quant.quantize import quantize
from mx_quant.report import compare
from mx_quant.tensor import MXTensor

SHAPES = [(1, 1), (128, 4), (130, 5), (300, 18), (7, 129)]


def scales(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(1, 255, shape, generator=generator, dtype=torch.uint8)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_byte_lies_where_cublas_reads_it(shape: tuple[int, int]) -> None:
    s = scales(*shape)
    flat = layouts.swizzle(s)
    tiles_across = -(-shape[1] // 4)
    assert flat.numel() == -(-shape[0] // 128) * 128 * tiles_across * 4
    used = torch.zeros_like(flat, dtype=torch.bool)
    for row in range(shape[0]):
        for column in range(shape[1]):
            tile = (row // 128) * tiles_across + column // 4
            inner = row % 128
            offset = tile * 512 + (inner % 32) * 16 + (inner // 32) * 4 + column % 4
            assert flat[offset] == s[row, column]
            used[offset] = True
    assert int(used.sum()) == s.numel()
    assert not flat[~used].any(), "padding is zero"


@pytest.mark.parametrize("shape", SHAPES)
def test_every_byte_lies_where_flashinfer_reads_its_small_tiles(shape: tuple[int, int]) -> None:
    s = scales(*shape)
    flat = layouts.swizzle(s, tile=layouts.FLASHINFER_SMALL_TILE)
    tiles_across = -(-shape[1] // 4)
    for row in range(shape[0]):
        for column in range(shape[1]):
            tile = (row // 8) * tiles_across + column // 4
            assert flat[tile * 32 + (row % 8) * 4 + column % 4] == s[row, column]


@pytest.mark.parametrize("tile", [layouts.CUBLAS_TILE, layouts.FLASHINFER_SMALL_TILE])
@pytest.mark.parametrize("shape", [*SHAPES, (3, 130, 5), (2, 2, 9, 33)])
def test_swizzling_comes_back_for_any_rank(shape: tuple[int, ...], tile: tuple[int, int]) -> None:
    s = scales(*shape)
    flat = layouts.swizzle(s, tile=tile)
    back = layouts.unswizzle(flat, rows=shape[-2], columns=shape[-1], tile=tile)
    assert torch.equal(back, s)
    one = layouts.swizzle(s.reshape(-1, *shape[-2:])[-1], tile=tile)
    assert torch.equal(flat.reshape(-1, one.numel())[-1], one)


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("shape", [(32, 32), (160, 96), (3, 64, 160)])
def test_scales_of_the_gemm_and_of_te_come_back(shape: tuple[int, ...], axis: int) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).bfloat16()
    t = quantize(x, grid=MXFP8, axis=axis)
    back = layouts.from_gemm(t.elements, layouts.gemm_scales(t), grid=MXFP8, axis=axis)
    assert compare(back, t).same_bytes
    padded = layouts.te_scales(t)
    rows = x.numel() // shape[-1]
    expected = (-(-rows // 128) * 128, -(-shape[-1] // 128) * 4)
    if axis == -2:
        expected = (-(-rows // 128) * 4, -(-shape[-1] // 128) * 128)
    assert tuple(padded.shape) == expected
    uninitialised = padded.clone()
    uninitialised[padded == 0] = 0xAB
    assert compare(layouts.from_te(t.elements, uninitialised, grid=MXFP8, axis=axis), t).same_bytes


def test_columnwise_scales_are_swizzled_as_those_of_the_transposed_operand() -> None:
    x = torch.randn(64, 160).bfloat16()
    column = quantize(x, grid=MXFP8, axis=-2)
    row = quantize(x.t().contiguous(), grid=MXFP8)
    assert torch.equal(layouts.gemm_scales(column), layouts.gemm_scales(row))


def test_foreign_buffers_are_refused_with_what_was_expected() -> None:
    t = quantize(torch.randn(160, 96).bfloat16(), grid=MXFP8)
    with pytest.raises(ValueError, match=r"shape \(160, 5\).*expected \(256, 4\)"):
        layouts.from_te(t.elements, scales(160, 5), grid=MXFP8)
    with pytest.raises(ValueError, match="do not hold 160 x 3 scales .*expected 1024"):
        layouts.from_gemm(t.elements, scales(512), grid=MXFP8)
    with pytest.raises(ValueError, match=r"expected E8M0 bytes \(uint8\)"):
        layouts.swizzle(quantize(torch.randn(4, 128), grid=FP8_BLOCK_1X128).scales)
    with pytest.raises(ValueError, match="tile .*expected"):
        layouts.swizzle(t.scales, tile=(16, 4))


@pytest.mark.parametrize("block", [16, 32])
def test_shuffled_rows_lie_where_the_epilogue_reads_them_and_come_back(block: int) -> None:
    x = torch.arange(2 * block * 3).reshape(2 * block, 3)
    got = layouts.shuffle_rows(x, block=block)
    ways = block // 8
    for row in range(2 * block):
        inner = row % block
        target = row - inner + (inner % ways) * 8 + inner // ways
        assert torch.equal(got[target], x[row])
    assert torch.equal(layouts.unshuffle_rows(got, block=block), x)


def test_shuffling_moves_elements_and_scales_alike() -> None:
    x = torch.randn(64, 64).bfloat16()
    t = quantize(x, grid=MXFP8)
    moved = MXTensor(layouts.shuffle_rows(t.elements), layouts.shuffle_rows(t.scales), MXFP8)
    assert compare(moved, quantize(layouts.shuffle_rows(x), grid=MXFP8)).same_bytes
    with pytest.raises(ValueError, match="no whole blocks of 32 rows"):
        layouts.shuffle_rows(x[:48])
    with pytest.raises(ValueError, match="expected 16 or 32"):
        layouts.shuffle_rows(x, block=8)


@pytest.mark.parametrize("shape", [(1, 1), (8, 4), (130, 5), (3, 7, 9)])
def test_words_of_deepgemm_are_little_endian_column_major_and_aligned(
    shape: tuple[int, ...],
) -> None:
    s = scales(*shape)
    packed = layouts.pack_deepgemm(s)
    assert packed.dtype == torch.int32
    assert tuple(packed.shape) == (*shape[:-1], -(-shape[-1] // 4))
    assert packed.stride(-2) == 1 or shape[-2] == 1
    assert packed.stride(-1) == -(-shape[-2] // 4) * 4
    words = packed.reshape(-1, *packed.shape[-2:])[-1]
    plain = s.reshape(-1, *shape[-2:])[-1]
    for row in range(shape[-2]):
        for column in range(shape[-1]):
            byte = (int(words[row, column // 4]) >> (8 * (column % 4))) & 0xFF
            assert byte == plain[row, column]
    assert torch.equal(layouts.unpack_deepgemm(packed, columns=shape[-1]), s)
    with pytest.raises(ValueError, match="expected int32 with"):
        layouts.unpack_deepgemm(packed, columns=shape[-1] + 4)
