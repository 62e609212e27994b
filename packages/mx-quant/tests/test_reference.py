"""The reference against oracles that share no code with it."""

import math
import warnings
from fractions import Fraction

import numpy as np
import pytest
import torch
from mx_quant_testdata import blocks_with_amax, every_bf16

from mx_quant import reference
from mx_quant.formats import E4M3, E5M2, ElementFormat
from mx_quant.grids import (
    MXFP8,
    MXFP8_E5M2,
    MXFP8_FLOOR,
    MXFP8_LOG2,
    MXFP8_PRE_2_13,
    Grid,
    ScaleRule,
)

RECIPROCAL = np.float32(1 / 448)


def rational_scale_byte(v: float) -> int:
    """Section 2 of the numerics page, with exact rationals."""
    if math.isnan(v):
        return 255
    if math.isinf(v):
        return 254
    exact = Fraction(v)
    if exact <= Fraction(1, 2**127):
        return 0
    power = exact.numerator.bit_length() - exact.denominator.bit_length()
    while Fraction(2) ** power < exact:
        power += 1
    while Fraction(2) ** (power - 1) >= exact:
        power -= 1
    return min(power + 127, 254)


def rational_element(y: float, element: ElementFormat) -> int:
    """Nearest element by exact comparison with all 127 magnitudes, ties to the even code."""
    codes = range(0x7F if element.name == "e4m3" else 0x7C)
    magnitudes = [_rational_decode(code, element) for code in codes]
    target = min(Fraction(abs(y)), magnitudes[-1])
    best = min(codes, key=lambda code: (abs(magnitudes[code] - target), code & 1))
    return best | (0x80 if math.copysign(1, y) < 0 else 0)


def _rational_decode(code: int, element: ElementFormat) -> Fraction:
    field, mantissa = code >> element.mantissa_bits, code & ((1 << element.mantissa_bits) - 1)
    exponent = max(field, 1) - element.bias - element.mantissa_bits
    significand = mantissa + ((1 << element.mantissa_bits) if field else 0)
    return Fraction(significand) * Fraction(2) ** exponent


@pytest.mark.parametrize(
    ("bits", "byte"),
    [
        (0x00000000, 0x00),
        (0x00000001, 0x00),
        (0x00400000, 0x00),
        (0x00400001, 0x01),
        (0x007FFFFF, 0x01),
        (0x00800000, 0x01),
        (0x00800001, 0x02),
        (0x3F800000, 0x7F),
        (0x3F800001, 0x80),
        (0x7F000000, 0xFE),
        (0x7F000001, 0xFE),
        (0x7F7FFFFF, 0xFE),
        (0x7F800000, 0xFE),
        (0x7FC00000, 0xFF),
    ],
)
def test_every_corner_row_of_the_scale_table(bits: int, byte: int) -> None:
    v = torch.tensor([bits], dtype=torch.int32).view(torch.float32)
    assert reference.round_up_byte(v).item() == byte
    assert rational_scale_byte(v.item()) == byte


def test_scale_of_every_bf16_amax_equals_exact_rationals_and_the_integer_form() -> None:
    amax = every_bf16()[:0x8000]
    x = torch.zeros(len(amax), 32, dtype=torch.bfloat16)
    x[:, 5] = amax
    got = reference.quantize(x, grid=MXFP8).scales[:, 0].tolist()
    finite = amax[:0x7F80].float().numpy()
    expected = [rational_scale_byte(float(v)) for v in finite * RECIPROCAL]
    assert got[:0x7F80] == expected
    assert got[0x7F80] == 0xFE
    assert set(got[0x7F81:]) == {0}, "NaN elements take no part in the amax"
    bits = amax[:0x7F80].float().view(torch.int32)
    integer = (bits >> 23) - 8 + ((bits & 0x7FFFFF) > 0x600000).int()
    assert integer.clamp(0, 254).tolist() == expected


def test_scale_of_fp32_amax_beside_every_power_of_two_equals_exact_rationals() -> None:
    around = [
        int(bits) + step
        for bits in (np.float32(448) * np.exp2(np.arange(-133, 120, dtype=np.float32))).view(
            np.int32
        )
        for step in (-1, 0, 1)
        if int(bits) + step > 0
    ]
    amax = torch.tensor([*around, 0x04600001, 1, 0x7F7FFFFF], dtype=torch.int32).view(torch.float32)
    x = torch.zeros(len(amax), 32)
    x[:, 31] = -amax
    got = reference.quantize(x, grid=MXFP8).scales[:, 0].tolist()
    assert got == [rational_scale_byte(float(v)) for v in amax.numpy() * RECIPROCAL]


def test_the_integer_form_is_wrong_for_one_fp32_amax() -> None:
    amax = torch.zeros(1, 32)
    amax[0, 0] = torch.tensor(0x04600001, dtype=torch.int32).view(torch.float32)
    assert reference.quantize(amax, grid=MXFP8).scales.item() == 0x00
    assert (0x04600001 >> 23) - 8 + ((0x04600001 & 0x7FFFFF) > 0x600000) == 0x01


@pytest.mark.parametrize("element", [E4M3, E5M2], ids=["e4m3", "e5m2"])
def test_rounding_every_bf16_value_equals_the_clamped_and_masked_cast(
    element: ElementFormat,
) -> None:
    y = every_bf16().float()
    cast = y.clamp(-element.max, element.max).to(element.torch_dtype).view(torch.uint8)
    expected = torch.where(y.isnan(), element.nan_byte, cast)
    assert torch.equal(reference.round_element(y, element), expected)


@pytest.mark.parametrize("element", [E4M3, E5M2], ids=["e4m3", "e5m2"])
def test_rounding_beside_every_tie_equals_exact_rationals(element: ElementFormat) -> None:
    count = 0x7E if element.name == "e4m3" else 0x7B
    ties = [
        float((_rational_decode(c, element) + _rational_decode(c + 1, element)) / 2)
        for c in range(count)
    ]
    tie = np.array(ties, dtype=np.float32)
    y = np.concatenate([tie, np.nextafter(tie, np.float32(0)), np.nextafter(tie, np.float32(9e9))])
    y = np.concatenate([y, -y, np.float32([0.0, -0.0, 448, 464, 465, 1e9, 57344, 61440, 3e38])])
    got = reference.round_element(torch.from_numpy(y), element).tolist()
    assert got == [rational_element(float(v), element) for v in y]


@pytest.mark.parametrize("grid", [MXFP8, MXFP8_E5M2], ids=lambda g: g.id)
def test_decoding_all_pairs_of_element_and_scale_equals_exact_rationals(grid) -> None:
    element = grid.element
    codes = torch.arange(256, dtype=torch.uint8).repeat(256, 1)
    scales = torch.arange(256, dtype=torch.uint8).unsqueeze(1).repeat(1, 8)
    t = reference.MXTensor.from_bytes(codes, scales, grid=grid)
    got = reference.dequantize(t)
    assert got[255].isnan().all()
    top = 0x7F if element.name == "e4m3" else 0x7C
    for code in range(256):
        magnitude = code & 0x7F
        if magnitude >= top:
            special = got[:255, code]
            infinite = element.name == "e5m2" and magnitude == 0x7C
            assert special.isinf().all() if infinite else special.isnan().all()
            continue
        value = _rational_decode(magnitude, element)
        for byte in range(255):
            exact = value * Fraction(2) ** (byte - 127)
            expected = float(exact) if exact < 2**128 else math.inf
            result = got[byte, code].item()
            assert abs(result) == expected, (byte, code)
            assert math.copysign(1, result) == (-1 if code > 0x7F else 1)


def test_decoding_equals_ml_dtypes_tables() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="oracle ml_dtypes is not installed")
    codes = np.arange(256, dtype=np.uint8)
    for element, dtype in ((E4M3, ml_dtypes.float8_e4m3fn), (E5M2, ml_dtypes.float8_e5m2)):
        got = reference.decode_element(torch.from_numpy(codes), element).numpy()
        np.testing.assert_array_equal(got, codes.view(dtype).astype(np.float32))
    got = reference.decode_scale(torch.from_numpy(codes)).numpy()
    np.testing.assert_array_equal(got, codes.view(ml_dtypes.float8_e8m0fnu).astype(np.float32))


def test_rounding_equals_gfloat() -> None:
    gfloat = pytest.importorskip("gfloat", reason="oracle gfloat is not installed")
    from gfloat.formats import format_info_ocp_e4m3, format_info_ocp_e5m2

    values = every_bf16()[0x3300:0x4800:5].float().numpy().astype(np.float64)
    for element, info in ((E4M3, format_info_ocp_e4m3), (E5M2, format_info_ocp_e5m2)):
        rounded = gfloat.round_ndarray(info, values, gfloat.RoundMode.TiesToEven, True)
        codes = reference.round_element(torch.from_numpy(values.astype(np.float32)), element)
        np.testing.assert_array_equal(reference.decode_element(codes, element).numpy(), rounded)


def test_the_scale_rule_equals_gfloats_directed_rounding() -> None:
    gfloat = pytest.importorskip("gfloat", reason="oracle gfloat is not installed")
    from gfloat.formats import format_info_ocp_e8m0

    generator = torch.Generator().manual_seed(3)
    # From 2^-127 up: below it gfloat does not saturate, and above 2^126 byte 254 is the last.
    bits = torch.randint(0x00400000, 0x7E800000, (4000,), generator=generator).to(torch.int32)
    powers = torch.exp2(torch.arange(-127, 127).double()).float()
    v = torch.cat([bits.view(torch.float32), powers])
    got = reference.decode_scale(reference.round_up_byte(v)).double().numpy()
    up = gfloat.RoundMode.TowardPositive
    expected = gfloat.round_ndarray(format_info_ocp_e8m0, v.double().numpy(), up, True)
    np.testing.assert_array_equal(got, expected)


def torchao_mx(x: torch.Tensor, mode: str) -> tuple[torch.Tensor, torch.Tensor]:
    """torchao's (scale bytes, element bytes) of rowwise blocks, by a ScaleCalculationMode."""
    pytest.importorskip("torchao", reason="oracle torchao is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchao.prototype.mx_formats.config import ScaleCalculationMode
        from torchao.prototype.mx_formats.mx_tensor import to_mx

        chosen = ScaleCalculationMode[mode]
        scales, elements = to_mx(x, torch.float8_e4m3fn, 32, scaling_mode=chosen)[:2]
    return scales.view(torch.uint8).reshape(-1), elements.view(torch.uint8)


@pytest.mark.parametrize(("mode", "grid"), [("RCEIL", MXFP8), ("FLOOR", MXFP8_FLOOR)])
def test_quantization_equals_torchao_for_every_bf16_amax_whose_scale_byte_is_not_0(
    mode: str, grid: Grid
) -> None:
    x = blocks_with_amax(every_bf16()[1:0x7F80])
    scales, elements = torchao_mx(x, mode)
    ours = reference.quantize(x, grid=grid)
    assert torch.equal(ours.scales.reshape(-1), scales)
    same = (ours.element_bytes == elements).all(dim=1)
    assert same[scales > 0].all()
    assert not same[scales == 0].all(), "torchao multiplies by 1.0 there"


def test_the_older_rule_equals_torchao_rceil_at_scale_byte_0_too() -> None:
    x = blocks_with_amax(every_bf16()[1:0x7F80])
    scales, elements = torchao_mx(x, "RCEIL")
    ours = reference.quantize(x, grid=MXFP8_PRE_2_13)
    assert torch.equal(ours.scales.reshape(-1), scales)
    assert torch.equal(ours.element_bytes, elements)


def test_known_difference_torchao_makes_a_block_with_a_nan_all_nan() -> None:
    x = torch.ones(1, 32)
    x[0, 3] = float("nan")
    scales, elements = torchao_mx(x, "RCEIL")
    assert (scales.item(), elements.unique().item()) == (255, 0x7F)
    ours = reference.quantize(x, grid=MXFP8)
    assert (ours.scales.item(), ours.element_bytes[0, 0].item()) == (119, 0x78)


def test_known_difference_torchao_takes_a_floating_log2_of_fp32_input() -> None:
    exact = (448 * torch.exp2(torch.arange(-126, 112).double())).float()
    for ulp in (-1, 0, 1):
        x = torch.zeros(len(exact), 32)
        x[:, 0] = (exact.view(torch.int32) + ulp).view(torch.float32)
        theirs = torchao_mx(x, "RCEIL")[0]
        ours = reference.quantize(x, grid=MXFP8).scales.reshape(-1)
        assert torch.equal(theirs, reference.quantize(x, grid=MXFP8_LOG2).scales.reshape(-1))
        # log2 of 2^k (1 + 1 ulp) rounds to k in fp32 unless k is small.
        assert int((ours != theirs).sum()) == (230 if ulp == 1 else 0)
        for index in range(0, len(exact), 17):
            v = float(np.float32(x[index, 0].item()) * RECIPROCAL)
            assert ours[index].item() == rational_scale_byte(v)


def test_byte_zero_multiplies_by_2_to_the_127_or_by_one_in_the_older_variant() -> None:
    zero = torch.zeros(1, dtype=torch.int64)
    assert reference.reciprocal(zero, ScaleRule.ROUND_UP).item() == 2.0**127
    assert reference.reciprocal(zero, ScaleRule.ROUND_UP_PRE_2_13).item() == 1.0
    largest = torch.tensor([254])
    assert reference.reciprocal(largest, ScaleRule.ROUND_UP).item() == 2.0**-127


def test_scale_byte_254_keeps_its_elements() -> None:
    x = torch.full((1, 32), 3.0e38)
    t = reference.quantize(x, grid=MXFP8)
    assert t.scales.item() == 247
    t = reference.quantize(torch.full((1, 32), float("inf")), grid=MXFP8)
    assert (t.scales.item(), t.element_bytes.unique().item()) == (254, 0x7E)


def test_floor_saturates_where_the_amax_mantissa_exceeds_1_75() -> None:
    x = torch.zeros(1, 32)
    x[0, 0] = 1.9
    t = reference.quantize(x, grid=MXFP8_FLOOR)
    assert (t.scales.item(), t.dequantize()[0, 0].item()) == (127 - 8, 1.75)


def test_log2_rule_equals_round_up_for_every_finite_bf16_amax_that_is_normal() -> None:
    x = torch.zeros(0x7F80 - 0x80, 32, dtype=torch.bfloat16)
    x[:, 0] = every_bf16()[0x80:0x7F80]
    log2, up = (reference.quantize(x, grid=g).scales for g in (MXFP8_LOG2, MXFP8))
    assert torch.equal(log2, up)


def test_log2_rule_differs_one_ulp_above_448_times_a_power_of_two() -> None:
    amax = (448 * torch.exp2(torch.arange(-100, 100).float())).view(torch.int32) + 1
    x = torch.zeros(200, 32)
    x[:, 0] = amax.view(torch.float32)
    log2, up = (reference.quantize(x, grid=g).scales for g in (MXFP8_LOG2, MXFP8))
    assert (log2 != up).float().mean() > 0.9


def test_nan_elements_become_the_canonical_byte_and_leave_the_rest_alone() -> None:
    x = torch.ones(1, 32, dtype=torch.bfloat16)
    x[0, 3] = torch.tensor(-1, dtype=torch.int16).view(torch.bfloat16)
    t = reference.quantize(x, grid=MXFP8)
    assert t.element_bytes[0, 3].item() == 0x7F
    assert t.scales.item() == 127 - 8
