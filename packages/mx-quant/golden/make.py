"""Makes the golden vectors by exact rational arithmetic, ``make.py > vectors.json``.

Python's integers and fractions alone: no torch, no NumPy, nothing of mx_quant. What is computed is
docs/numerics.md. Numbers are bit patterns in hexadecimal, so that any language can read the file.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

INF, NAN = "inf", "nan"
Number = Fraction | str  # a magnitude; INF and NAN have none that is rational


@dataclass(frozen=True)
class Float:
    """A binary format: widths of exponent and mantissa, exponent bias, whether it has an Inf."""

    exponent: int
    mantissa: int
    bias: int
    ieee: bool = True

    @property
    def bits(self) -> int:
        return 1 + self.exponent + self.mantissa

    def decode(self, code: int) -> tuple[int, Number]:
        """(sign, magnitude) of a bit pattern."""
        sign = code >> (self.bits - 1)
        field = (code >> self.mantissa) & ((1 << self.exponent) - 1)
        mantissa = code & ((1 << self.mantissa) - 1)
        top = (1 << self.exponent) - 1
        if self.ieee and field == top:
            return sign, NAN if mantissa else INF
        if not self.ieee and field == top and mantissa == (1 << self.mantissa) - 1:
            return sign, NAN
        whole = mantissa + ((1 << self.mantissa) if field else 0)
        return sign, Fraction(whole) * Fraction(2) ** (max(field, 1) - self.bias - self.mantissa)

    @property
    def largest(self) -> int:
        """Bit pattern of the largest finite magnitude."""
        top = ((1 << self.exponent) - 1) << self.mantissa
        return top - 1 if self.ieee else top + (1 << self.mantissa) - 2

    def encode(self, magnitude: Fraction, *, saturate: bool) -> int:
        """The nearest bit pattern, ties to even, by exact comparison; overflow to Inf or max."""
        if magnitude == 0:
            return 0
        power = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
        if Fraction(2) ** power > magnitude:
            power -= 1  # 2**power <= magnitude < 2**(power + 1)
        unit = Fraction(2) ** (max(power, 1 - self.bias) - self.mantissa)
        quotient = magnitude / unit
        whole = quotient.numerator // quotient.denominator
        rest = quotient - whole
        if rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole & 1):
            whole += 1
        # A whole number of units of the exponent's field: carries run into the field by themselves.
        code = whole + (max(power + self.bias - 1, 0) << self.mantissa)
        if code <= self.largest:
            return code
        return self.largest if saturate or not self.ieee else self.largest + 1


FP32 = Float(8, 23, 127)
INPUTS = {"bf16": Float(8, 7, 127), "fp16": Float(5, 10, 15), "fp32": FP32}
ELEMENTS = {"e4m3": Float(4, 3, 7, ieee=False), "e5m2": Float(5, 2, 15)}
GRIDS = {
    "mxfp8": ("e4m3", "round_up"),
    "mxfp8_e5m2": ("e5m2", "round_up"),
    "mxfp8_floor": ("e4m3", "floor"),
    "mxfp8_pre_2_13": ("e4m3", "round_up_pre_2_13"),
    "mxfp8_zero_ends": ("e4m3", "round_up_zero_ends"),
    "mxfp8_zero_as_one": ("e4m3", "round_up_zero_as_one"),
}


def scale_byte(amax: Number, element: Float, rule: str) -> int:
    """The E8M0 byte of a block."""
    if amax == INF:
        return 254 if rule != "floor" else 254 - _emax(element)
    assert isinstance(amax, Fraction)
    if rule == "floor":
        code = FP32.encode(amax, saturate=False)
        return max((code >> 23) - _emax(element), 0)
    largest = element.decode(element.largest)[1]
    assert isinstance(largest, Fraction)
    reciprocal = FP32.decode(FP32.encode(1 / largest, saturate=False))[1]
    assert isinstance(reciprocal, Fraction)
    v = FP32.decode(FP32.encode(amax * reciprocal, saturate=False))[1]
    assert isinstance(v, Fraction)
    byte = 0
    while Fraction(2) ** (byte - 127) < v:
        byte += 1
    return min(byte, 254)


def _emax(element: Float) -> int:
    largest = element.decode(element.largest)[1]
    power = 0
    while Fraction(2) ** (power + 1) <= largest:  # type: ignore[operator]
        power += 1
    return power


def quantize(codes: list[int], source: Float, grid: str) -> tuple[int, list[int]]:
    """(scale byte, element bytes) of a block."""
    name, rule = GRIDS[grid]
    element = ELEMENTS[name]
    numbers = [source.decode(code) for code in codes]
    finite = [m for _, m in numbers if isinstance(m, Fraction)]
    amax: Number = max(finite, default=Fraction(0))
    if any(m == INF for _, m in numbers):
        amax = INF
    byte = scale_byte(amax, element, rule)
    factor = Fraction(2) ** (127 - byte)
    if byte == 0 and rule in ("round_up_pre_2_13", "round_up_zero_ends"):
        factor = Fraction(1)
    if byte == 254 and rule == "round_up_zero_ends":
        factor = Fraction(0)
    out = []
    for sign, magnitude in numbers:
        if magnitude == NAN or (magnitude == INF and factor == 0):
            out.append(0x7F)
        elif magnitude == INF:
            out.append(sign << 7 | element.largest)
        else:
            assert isinstance(magnitude, Fraction)
            y = FP32.decode(FP32.encode(magnitude * factor, saturate=True))[1]
            assert isinstance(y, Fraction)
            out.append(sign << 7 | element.encode(y, saturate=True))
    stored = max(byte, 1) if rule == "round_up_zero_as_one" else byte
    return stored, out


def corners() -> Iterator[tuple[str, list[int]]]:
    """fp32 blocks around every row of the table of the scale rule."""
    ramp = [Fraction(1), Fraction(3, 4), Fraction(1, 2), Fraction(1, 3), Fraction(1, 448)]
    for field in (0, 1, 2, 8, 9, 10, 119, 127, 128, 200, 246, 253, 254):
        for mantissa in (0, 1, 0x400000, 0x5FFFFF, 0x600000, 0x600001, 0x7FFFFF):
            amax = field << 23 | mantissa
            magnitude = FP32.decode(amax)[1]
            assert isinstance(magnitude, Fraction)
            block = [amax]
            for index in range(31):
                part = magnitude * ramp[index % 5] / 2 ** (index // 2)
                block.append(FP32.encode(part, saturate=True) | (index & 1) << 31)
            yield "fp32", block


def random_blocks(generator: random.Random) -> Iterator[tuple[str, list[int]]]:
    """Raw bits, heavy tails, subnormal range, NaN payloads and infinities."""
    for name, form in INPUTS.items():
        top = (1 << form.exponent) - 1
        for kind in ("raw", "near", "heavy", "subnormal", "special", "zero"):
            for _ in range(2 if kind == "zero" else 5):
                center = generator.randrange(1, top - 1)
                block = []
                for _ in range(32):
                    sign = generator.getrandbits(1) << (form.bits - 1)
                    mantissa = generator.getrandbits(form.mantissa)
                    spread = {"near": 3, "heavy": 24, "special": 6}.get(kind, 0)
                    field = min(max(center - generator.randrange(spread + 1), 0), top - 1)
                    code = sign | field << form.mantissa | mantissa
                    if kind == "raw":
                        code = generator.getrandbits(form.bits)
                    elif kind == "subnormal":
                        code = sign | generator.randrange(3) << form.mantissa | mantissa
                    elif kind == "zero":
                        code = sign
                    elif kind == "special" and generator.randrange(4) == 0:
                        code = sign | top << form.mantissa | generator.choice([0, mantissa | 1])
                    block.append(code)
                yield name, block


def decoding(name: str, byte: int) -> str:
    """fp32 bits of all 256 elements with one scale; every NaN is 7fc00000."""
    element = ELEMENTS[name]
    words = []
    for code in range(256):
        sign, magnitude = element.decode(code)
        if magnitude == NAN or byte == 255:
            words.append(0x7FC00000)
        elif magnitude == INF:
            words.append(sign << 31 | 0x7F800000)
        else:
            assert isinstance(magnitude, Fraction)
            exact = magnitude * Fraction(2) ** (byte - 127)
            words.append(sign << 31 | FP32.encode(exact, saturate=False))
    return "".join(f"{word:08x}" for word in words)


def main() -> None:
    """Prints the file."""
    blocks = [*corners(), *random_blocks(random.Random(20260101))]
    cases = []
    for name, block in blocks:
        width = INPUTS[name].bits // 4
        for grid in GRIDS:
            byte, elements = quantize(block, INPUTS[name], grid)
            cases.append([len(cases) // len(GRIDS), grid, byte, bytes(elements).hex()])
        blocks[len(cases) // len(GRIDS) - 1] = (name, "".join(f"{c:0{width}x}" for c in block))  # type: ignore[call-overload]
    scales = (0, 1, 2, 3, 10, 119, 126, 127, 134, 239, 246, 247, 253, 254, 255)
    document = {
        "about": "Golden vectors of MXFP8 by exact rational arithmetic. blocks: [dtype, 32 inputs "
        "in hex]. quantize: [block, grid, scale byte, 32 element bytes in hex]. decode: [element "
        "format, scale byte, fp32 bits of elements 0 to 255 in hex; any NaN is written 7fc00000].",
        "blocks": blocks,
        "quantize": cases,
        "decode": [[name, byte, decoding(name, byte)] for name in ELEMENTS for byte in scales],
    }
    lines = ["{"]
    for index, (key, value) in enumerate(document.items()):
        comma = "," if index < len(document) - 1 else ""
        if isinstance(value, str):
            lines.append(f"{json.dumps(key)}: {json.dumps(value)}{comma}")
        else:
            rows = ",\n".join(json.dumps(row) for row in value)
            lines.append(f"{json.dumps(key)}: [\n{rows}\n]{comma}")
    sys.stdout.write("\n".join([*lines, "}", ""]))


if __name__ == "__main__":
    main()
