"""The native backend: C kernels through ctypes, on CPU tensors.

One library per instruction-set level is built at installation; the best one that the CPU supports
is loaded on first use. ctypes releases the interpreter lock during every call.
"""

from __future__ import annotations

import ctypes
import functools
import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from mx_quant.call import Call
from mx_quant.formats import E4M3, E5M2
from mx_quant.grids import Grid, ScaleRule
from mx_quant.tensor import MXTensor

KINDS = {torch.bfloat16: 0, torch.float16: 1, torch.float32: 2}
_FORMATS = {E4M3.name: 0, E5M2.name: 1}
_RULES = {
    ScaleRule.ROUND_UP: 0,
    ScaleRule.ROUND_UP_PRE_2_13: 1,
    ScaleRule.ROUND_UP_ZERO_AS_ONE: 2,
    ScaleRule.FLOOR: 3,
}
_LEVELS = ("base", "avx2", "avx512")
_I, _L, _P = ctypes.c_int, ctypes.c_long, ctypes.c_void_p
_SIGNATURES: dict[str, tuple[list[type], type | None]] = {
    "mx_cpu_level": ([], _I),
    "mx_panel_columns": ([], _I),
    "mx_packed_bytes": ([_L, _L, _I], _L),
    "mx_quantize": ([_P, _I, _L, _L, _I, _I, _P, _P, _P, _P, _I], None),
    "mx_fake_quantize": ([_P, _I, _L, _L, _I, _I, _I, _P, _I, _I], None),
    "mx_dequantize": ([_P, _P, _L, _L, _I, _I, _P, _I, _I], None),
    "mx_advise": ([_P, ctypes.c_size_t], None),
    "mx_encode": ([_P, _I, _P, _L, _L, _I, _P, _I], _L),
    "mx_pack": ([_P, _I, _L, _L, _I, _I, _P, _I], None),
    "mx_unpack": ([_P, _L, _L, _I, _I, _P, _I, _I], None),
    "mx_pack_codes": ([_P, _P, _L, _L, _I, _I, _P, _I], None),
    "mx_read_back": ([_P, _P, _L, _L, _I, _P, _I], _L),
    "mx_linear": ([_P, _I, _L, _L, _I, _I, _P, _I, _L, _P, _I, _I], _I),
    "mx_wgrad": ([_P, _I, _I, _P, _I, _I, _I, _L, _L, _L, _P, _I, _I], _I),
}


@dataclass(frozen=True, slots=True)
class Native:
    """A loaded library and its level, or why there is none."""

    lib: ctypes.CDLL | None
    level: str
    reason: str


def directory() -> Path:
    """Where the libraries are installed."""
    return Path(__file__).parent / "kernels"


def _open(level: str) -> ctypes.CDLL:
    lib = ctypes.CDLL(str(directory() / f"libmxquant-{level}.so"))
    for name, (arguments, result) in _SIGNATURES.items():
        function = getattr(lib, name)
        function.argtypes, function.restype = arguments, result
    return lib


@functools.cache
def load() -> Native:
    """The best library for this CPU. Never raises: ``reason`` says what was found."""
    built = [level for level in _LEVELS if (directory() / f"libmxquant-{level}.so").exists()]
    if "base" not in built:
        return Native(None, "", "kernels not built: no C compiler when mx-quant was installed")
    try:
        base = _open("base")
        supported = _LEVELS[: base.mx_cpu_level() + 1]
        level = [name for name in supported if name in built][-1]
        lib = base if level == "base" else _open(level)
    except (OSError, AttributeError) as error:
        return Native(None, "", f"kernels could not be loaded ({error}); reinstall mx-quant")
    return Native(lib, level, f"best of {', '.join(built)} that this CPU supports")


def library() -> ctypes.CDLL:
    """The loaded library. Raises RuntimeError when there is none."""
    native = load()
    if native.lib is None:
        raise RuntimeError(f"mx-quant's native backend is not available: {native.reason}")
    return native.lib


def available() -> bool:
    """Whether the native backend can be used in this process."""
    return load().lib is not None


def codes(grid: Grid | None) -> tuple[int, int]:
    """(format, rule) as the kernels number them; (-1, 0) for no grid."""
    return (-1, 0) if grid is None else (_FORMATS[grid.element.name], _RULES[grid.rule])


def supports_grid(grid: Grid) -> bool:
    """Whether the kernels implement ``grid``."""
    return grid.block == (1, 32) and grid.rule in _RULES and grid.element.name in _FORMATS


def describe() -> str:
    """The loaded level and why it was taken."""
    return f"{load().level}: {load().reason}"


def refusal(call: Call) -> str:
    """Why the kernels do not serve ``call``; empty when they do."""
    if not available():
        return load().reason
    if call.device != "cpu":
        return f"it serves CPU tensors, not {call.device}"
    if not supports_grid(call.grid):
        return f"grid {call.grid.id!r} has no kernel"
    for dtype in (call.dtype, call.result):
        if dtype is not None and dtype not in KINDS:
            return f"{dtype} has no kernel"
    if 0 in call.shape:
        return "the tensor is empty"
    columnwise = call.axis == -2 or call.op == "quantize_both"
    if columnwise and len(call.shape) > 2 and call.shape[-2] % 32:
        return "columnwise strips would cross a leading axis"
    return ""


def _rows(x: Tensor) -> int:
    return math.prod(x.shape[:-1])


_LARGE_BYTES = 4 * 2**20


def fresh(shape: tuple[int, ...] | torch.Size, dtype: torch.dtype) -> Tensor:
    """``torch.empty`` on the CPU; a large tensor asks for large pages, which fault less often."""
    out = torch.empty(shape, dtype=dtype)
    if out.nbytes >= _LARGE_BYTES:
        library().mx_advise(out.data_ptr(), out.nbytes)
    return out


def empty(shape: tuple[int, ...], *, grid: Grid, axis: int) -> MXTensor:
    """An MXTensor whose bytes are yet to be written."""
    return MXTensor(
        fresh(shape, torch.uint8).view(grid.element.torch_dtype),
        torch.empty(grid.scale_shape(shape, axis=axis), dtype=grid.scale_dtype),
        grid,
        axis,
    )


def quantize_into(x: Tensor, rowwise: MXTensor | None, columnwise: MXTensor | None) -> None:
    """Quantize ``x`` into existing contiguous tensors, in one pass over ``x``."""
    x = x.detach().contiguous()
    grid = (rowwise or columnwise).grid  # type: ignore[union-attr]
    pointers: list[int | None] = []
    for out in (rowwise, columnwise):
        if out is None:
            pointers += [None, None]
        else:
            pointers += [out.elements.data_ptr(), out.scales.data_ptr()]
    library().mx_quantize(
        x.data_ptr(),
        KINDS[x.dtype],
        _rows(x),
        x.shape[-1],
        *codes(grid),
        *pointers,
        torch.get_num_threads(),
    )


def quantize(x: Tensor, *, grid: Grid, axis: int) -> MXTensor:
    """As ``mx_quant.quantize``."""
    out = empty(tuple(x.shape), grid=grid, axis=axis)
    quantize_into(x, out if axis == -1 else None, out if axis == -2 else None)
    return out


def quantize_both(x: Tensor, *, grid: Grid) -> tuple[MXTensor, MXTensor]:
    """(rowwise, columnwise) in one pass."""
    row, column = (empty(tuple(x.shape), grid=grid, axis=axis) for axis in (-1, -2))
    quantize_into(x, row, column)
    return row, column


def fake_quantize(
    x: Tensor, *, grid: Grid, axis: int, dtype: torch.dtype, out: Tensor | None = None
) -> Tensor:
    """As ``mx_quant.fake_quantize``; ``out`` is contiguous, on the CPU, in ``dtype``."""
    x = x.detach().contiguous()
    out = fresh(x.shape, dtype) if out is None else out
    library().mx_fake_quantize(
        x.data_ptr(),
        KINDS[x.dtype],
        _rows(x),
        x.shape[-1],
        *codes(grid),
        axis,
        out.data_ptr(),
        KINDS[dtype],
        torch.get_num_threads(),
    )
    return out


def dequantize(t: MXTensor, *, dtype: torch.dtype, out: Tensor | None = None) -> Tensor:
    """As ``mx_quant.dequantize``; ``out`` is contiguous, on the CPU, in ``dtype``."""
    t = t.contiguous()
    out = fresh(t.shape, dtype) if out is None else out
    library().mx_dequantize(
        t.elements.data_ptr(),
        t.scales.data_ptr(),
        _rows(t.elements),
        t.shape[-1],
        codes(t.grid)[0],
        t.axis,
        out.data_ptr(),
        KINDS[dtype],
        torch.get_num_threads(),
    )
    return out


def encode(x: Tensor, scales: Tensor, *, grid: Grid) -> tuple[MXTensor, int]:
    """Element bytes of values on the grid with rowwise ``scales``, and how many are off it."""
    x, scales = x.detach().contiguous(), scales.contiguous()
    out = torch.empty(x.shape, dtype=torch.uint8)
    bad = library().mx_encode(
        x.data_ptr(),
        KINDS[x.dtype],
        scales.data_ptr(),
        _rows(x),
        x.shape[-1],
        codes(grid)[0],
        out.data_ptr(),
        torch.get_num_threads(),
    )
    return MXTensor(out.view(grid.element.torch_dtype), scales, grid, -1), int(bad)
