"""vLLM's fused layout and back to canonical tensors. Rows move; no arithmetic on the way in.

On the way out the elements are re-encoded from the operand, so what is compared is what the GEMM
reads, not what was written.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from mx_quant import MXTensor
from mx_vllm.methods import operand_of
from mx_vllm.names import Place


def parts_of(place: Place, tensor: MXTensor | Tensor) -> list[tuple[str, Tensor]]:
    """The vLLM parameters that one canonical tensor fills, as (parameter name, rows).

    Raises ValueError when ``tensor`` is not in the form that the live layer has.
    """
    grid = tensor.grid if isinstance(tensor, MXTensor) else None
    if grid != place.grid:
        raise ValueError(
            f"{place.name}: expected {_form(place.grid)}, found {_form(grid)}; the learner and the "
            f"sampler do not have the same layers on the grid ({place.module} in vLLM)"
        )
    if tuple(tensor.shape) != place.shape:
        raise ValueError(f"{place.name}: expected shape {place.shape}, found {tuple(tensor.shape)}")
    if isinstance(tensor, MXTensor):
        return [(place.parameter, tensor.elements), (f"{place.parameter}_scale", tensor.scales)]
    return [(place.parameter, tensor)]


def read_back(
    places: Iterable[Place], module: nn.Module
) -> dict[str, MXTensor | Tensor | ValueError]:
    """The canonical tensors that ``module`` computes with, for ``places`` that all lie in it.

    The operand is decoded once for all of them. A tensor whose stored parameter is not what the
    operand was made from comes as a ValueError, so that only it is blamed in a fused module.
    Raises ValueError when the operand holds values off the grid.
    """
    places = list(places)
    whole = _operand(module, places) if any(place.operand for place in places) else None
    out: dict[str, MXTensor | Tensor | ValueError] = {}
    for place in places:
        start, stop = place.rows
        if not place.operand or whole is None:
            out[place.name] = getattr(module, place.parameter).data[start:stop]
            continue
        part = whole.rows(start, stop) if isinstance(whole, MXTensor) else whole[start:stop]
        stale = None if place.tied else _difference(place, part, module)
        out[place.name] = part if stale is None else stale
    return out


def _operand(module: nn.Module, places: list[Place]) -> MXTensor | Tensor:
    grids = {place.grid for place in places if place.operand}
    (grid,) = grids  # a fused module has one method
    operand = operand_of(module)
    if grid is None:
        return operand.read_back_bf16()
    return operand.read_back(grid=grid, scales=module.get_parameter("weight_scale").data)


def _difference(place: Place, read: MXTensor | Tensor, module: nn.Module) -> ValueError | None:
    data = read.elements if isinstance(read, MXTensor) else read
    stored = module.get_parameter("weight").data[slice(*place.rows)]
    if torch.equal(_words(data), _words(stored)):
        return None
    return ValueError(f"{place.name}: the GEMM's operand is not the stored parameter")


def _words(data: Tensor) -> Tensor:
    """The bits of a contiguous matrix in the widest integers that its rows divide into."""
    row_bytes = data.shape[-1] * data.element_size()
    return data.view(torch.int64 if row_bytes % 8 == 0 else torch.uint8)


def _form(grid: object) -> str:
    return "bf16" if grid is None else f"grid {getattr(grid, 'id', grid)}"
