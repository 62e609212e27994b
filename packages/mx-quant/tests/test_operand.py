import pytest
import torch
from mx_quant_testdata import KINDS, mixed

from mx_quant import gemm, operand
from mx_quant.digest import digest
from mx_quant.gemm import Gemm
from mx_quant.grids import FP8_BLOCK_128X128, MXFP8, MXFP8_32X32, MXFP8_E5M2
from mx_quant.linear import Operand
from mx_quant.quantize import quantize


@pytest.fixture(params=list(Gemm), ids=str, autouse=True)
def any_gemm(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param is Gemm.NATIVE and not gemm.native.available():
        pytest.skip(gemm.native.load().reason)
    for module in (gemm, operand):
        monkeypatch.setattr(module, "selected", lambda: request.param)


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_gemm_reads_goes_back_to_the_very_bytes(kind: str) -> None:
    x = mixed(96, 160, torch.bfloat16, kind=kind).clamp(-(2.0**126), 2.0**126)
    for grid in (MXFP8, MXFP8_E5M2, MXFP8_32X32, FP8_BLOCK_128X128):
        t = quantize(x, grid=grid)
        back = Operand.from_mx(t).read_back(grid=grid, scales=t.scales)
        assert digest(back) == digest(t), grid.id


@pytest.mark.parametrize("byte", [0, 1, 2, 3, 10, 120, 246, 247, 254])
def test_scales_at_the_ends_are_read_back_too(byte: int) -> None:
    codes = torch.arange(256, dtype=torch.uint8).repeat(4, 1)
    codes[codes == 0xFF] = 0x7F
    scales = torch.full((4, 8), byte, dtype=torch.uint8)
    t = operand.MXTensor.from_bytes(codes, scales, grid=MXFP8)
    finite = t.dequantize().isfinite() | t.elements.float().isnan()
    t = operand.MXTensor.from_bytes(torch.where(finite, codes, 0), scales, grid=MXFP8)
    back = Operand.from_mx(t).read_back(grid=MXFP8, scales=scales)
    assert digest(back) == digest(t)


def test_values_that_overflow_are_refused_for_their_bytes_cannot_be_told() -> None:
    x = torch.full((1, 32), 3.39e38).bfloat16()  # rounds up to 2^128
    t = quantize(x, grid=MXFP8)
    with pytest.raises(ValueError, match="32 of 32 values"):
        Operand.from_mx(t).read_back(grid=MXFP8, scales=t.scales)


def test_a_corrupted_operand_is_reported() -> None:
    t = quantize(mixed(32, 64, torch.bfloat16, kind="gauss"), grid=MXFP8)
    held = Operand.from_mx(t)
    held.storage.view(torch.uint8).view(-1)[100] ^= 0x11
    try:
        back = held.read_back(grid=MXFP8, scales=t.scales)
    except ValueError as error:
        assert "not on grid 'mxfp8'" in str(error)  # noqa: PT017
    else:
        assert digest(back) != digest(t)


def test_scales_of_another_weight_are_refused() -> None:
    t = quantize(mixed(32, 64, torch.bfloat16, kind="gauss"), grid=MXFP8)
    held = Operand.from_mx(t)
    with pytest.raises(ValueError, match=r"expected \(32, 2\)"):
        held.read_back(grid=MXFP8, scales=t.scales[:16])
    with pytest.raises(ValueError, match="values that the GEMM reads are not on grid"):
        held.read_back(grid=MXFP8, scales=t.scales - 20)


def test_plain_weights_are_read_back_as_they_are() -> None:
    for shape in ((96, 160), (33, 7), (1, 1)):
        w = torch.randn(shape, generator=torch.Generator().manual_seed(0)).bfloat16()
        for transposed in (False, True):
            held = Operand.from_tensor(w, transposed=transposed)
            assert torch.equal(held.read_back_bf16(), w)
            assert torch.equal(held.matrix.float(), w.float())


def test_fp32_weights_that_are_no_bf16_values_say_so() -> None:
    held = Operand.from_tensor(torch.full((4, 8), 1.0000001))
    with pytest.raises(ValueError, match="32 of 32 values are not bf16 values"):
        held.read_back_bf16()


def test_loading_keeps_the_memory() -> None:
    t, u = (
        quantize(mixed(32, 64, torch.bfloat16, kind="gauss", seed=s), grid=MXFP8) for s in (1, 2)
    )
    held = Operand.from_mx(t)
    address = held.storage.data_ptr()
    held.load(u)
    assert held.storage.data_ptr() == address
    assert digest(held.read_back(grid=MXFP8, scales=u.scales)) == digest(u)
    with pytest.raises(ValueError, match=r"cannot load shape \(16, 64\)"):
        held.load(t.rows(0, 16))


def test_only_matrices_are_operands() -> None:
    with pytest.raises(ValueError, match="is a matrix"):
        Operand.from_tensor(torch.zeros(2, 3, 4))
