"""Canonical tensors to SGLang's serialized MXFP8 layout, and back.

Shapes: N output rows, K input columns; elements `[N, K]` float8_e4m3fn, scales `[N, K/32]` uint8.
No arithmetic in either direction: the bytes are the learner's own.
"""

from collections.abc import Iterable, Mapping

import torch

from mx_quant import Grid, MXTensor
from mx_quant.grids import MXFP8
from mx_sglang.names import canonical_name, element_name, is_scale, scale_name


def to_engine(name: str, tensor: MXTensor | torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    """Name/tensor pairs to hand to SGLang's weight update for one canonical tensor.

    Args:
        name: canonical (Hugging Face) name.
        tensor: an MXTensor on the MXFP8 grid, rowwise; or a plain tensor, which passes through.

    Returns:
        One pair for a plain tensor; elements, then scales, for an MXTensor. Views, no copies.

    Raises:
        ValueError: another grid or axis: SGLang's `mxfp8` method would read its bytes as MXFP8.
    """
    if not isinstance(tensor, MXTensor):
        return [(name, tensor)]
    if tensor.grid != MXFP8 or tensor.axis != -1:
        raise ValueError(
            f"{name}: expected grid {MXFP8.id} along axis -1, found grid {tensor.grid.id} along "
            f"axis {tensor.axis}; SGLang's mxfp8 method reads no other: quantize rowwise on MXFP8"
        )
    return [(element_name(name), tensor.elements), (scale_name(name), tensor.scales)]


def from_engine(
    parameters: Mapping[str, torch.Tensor], *, grid: Grid
) -> dict[str, MXTensor | torch.Tensor]:
    """Canonical tensors from SGLang's named parameters (a checkpoint, or a dump of a live engine).

    Args:
        parameters: name to tensor, canonical layout (not one of the kernels' shuffled layouts).
        grid: the grid that the scales belong to.

    Raises:
        ValueError: float8 elements without scales or scales without elements; all are named.
    """
    scales = {canonical_name(n): t for n, t in parameters.items() if is_scale(n)}
    elements = {n: t for n, t in parameters.items() if not is_scale(n)}
    orphans = sorted(set(scales) - set(elements))
    bare = sorted(
        n for n, t in elements.items() if t.dtype == grid.element.torch_dtype and n not in scales
    )
    if orphans or bare:
        raise ValueError(
            f"scales without elements: {orphans or 'none'}; float8 elements without scales: "
            f"{bare or 'none'}; expected both parts of every tensor on a grid: the update or the "
            "dump is incomplete"
        )
    return {
        n: MXTensor(elements=t, scales=scales[n], grid=grid) if n in scales else t
        for n, t in elements.items()
    }


def quantization_config(plain_modules: Iterable[str]) -> dict[str, object]:
    """`quantization_config` block of a checkpoint that SGLang serves with its `mxfp8` method.

    Args:
        plain_modules: full names of the linear modules that are *not* on the grid. They are read
            from the learner's live modules; a pattern here is how a layer set drifts.
    """
    return {
        "quant_method": "mxfp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [1, 32],
        "scale_fmt": "ue8m0",
        "modules_to_not_convert": sorted(plain_modules),
    }
