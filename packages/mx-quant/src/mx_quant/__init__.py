"""The number grids of MXFP8, exactly: quantize, compare, digest, and the emulated linear layer."""

from mx_quant import formats, grids, layouts, reference
from mx_quant.digest import digest
from mx_quant.formats import E4M3, E5M2, ElementFormat
from mx_quant.grids import MXFP8, Grid, ScaleRule, by_id
from mx_quant.linear import (
    LinearWeights,
    Operand,
    compute_dtype,
    linear,
    linear_forward,
)
from mx_quant.quantize import (
    backend,
    dequantize,
    explain,
    fake_quantize,
    quantize,
    quantize_both,
)
from mx_quant.report import Comparison, compare
from mx_quant.tensor import MXTensor, cat_columns, cat_rows

__all__ = [
    "E4M3",
    "E5M2",
    "MXFP8",
    "Comparison",
    "ElementFormat",
    "Grid",
    "LinearWeights",
    "MXTensor",
    "Operand",
    "ScaleRule",
    "backend",
    "by_id",
    "cat_columns",
    "cat_rows",
    "compare",
    "compute_dtype",
    "dequantize",
    "digest",
    "explain",
    "fake_quantize",
    "formats",
    "grids",
    "layouts",
    "linear",
    "linear_forward",
    "quantize",
    "quantize_both",
    "reference",
]
