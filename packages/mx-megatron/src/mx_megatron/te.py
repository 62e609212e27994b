"""Transformer Engine on Blackwell: configuration, modules and the bytes of its MXFP8 weights.

This module has not run on hardware. It is written against the bytes interface of Transformer
Engine 2.13 to 2.20 (``MXFP8Tensor``) and Megatron-Core 0.19.2's TE modules, and its crop and
checks are tested on the CPU with tensors of the same layout.

Weights on the grid are MXFP8 parameters (``fp8_param``): Transformer Engine quantizes them from the
master weights once per optimizer step, rowwise and columnwise, and every GEMM reads those bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from mx_megatron.emulation import output_weight
from mx_megatron.recipe import Recipe, select_layers
from mx_quant import MXFP8, Grid, MXTensor


def config_fields(recipe: Recipe, *, num_layers: int) -> dict[str, Any]:
    """TransformerConfig fields of ``recipe``.

    Raises ValueError for a layer selection that Megatron-Core cannot express: it keeps whole runs
    of first and last layers in bf16, nothing between them.
    """
    selected = select_layers(recipe.layers, num_layers=num_layers)
    if recipe.precision == "bf16" or not selected:
        return {}
    first, last = min(selected), num_layers - 1 - max(selected)
    if len(selected) != num_layers - first - last:
        raise ValueError(
            f"layers {recipe.layers!r} leaves bf16 layers between layers on the grid, which "
            "Megatron-Core's Transformer Engine layers cannot do; use 'all', 'none' or "
            "'skip:FIRST,LAST'"
        )
    return {
        "fp8": "e4m3",
        "fp8_recipe": "mxfp8",
        "fp8_param": True,
        "first_last_layers_bf16": bool(first or last),
        "num_layers_at_start_in_bf16": first,
        "num_layers_at_end_in_bf16": last,
    }


def provider() -> Any:
    """Transformer Engine's linear layers, norms and attention, with norms apart from linears.

    Unfused norms keep the parameter names of the local layers, so one name map serves both.
    """
    from megatron.core.extensions.transformer_engine_spec_provider import TESpecProvider

    class UnfusedTESpecProvider(TESpecProvider):  # type: ignore[misc]
        def fuse_layernorm_and_linear(self) -> bool:
            return False

    return UnfusedTESpecProvider()


def read_rowwise(weight: Any, *, name: str) -> MXTensor:
    """The rowwise bytes of an ``MXFP8Tensor`` [N, K] as views, its scale padding cropped.

    Transformer Engine pads rowwise scales to [roundup(N, 128), roundup(K / 32, 4)]; the padding is
    uninitialised. Raises ValueError when the rowwise copy is absent or its scales are already
    swizzled for the GEMM: those bytes are not in canonical order.
    """
    if getattr(weight, "_with_gemm_swizzled_scales", False):
        raise ValueError(
            f"{name}: scales are swizzled for the GEMM, so they are not canonical; export from "
            "primary MXFP8 weights, not from a cached workspace"
        )
    data, scales = weight._rowwise_data, weight._rowwise_scale_inv
    if data is None or scales is None:
        raise ValueError(f"{name}: no rowwise copy; keep rowwise usage on for exported weights")
    rows, columns = data.shape
    if scales.shape[0] < rows or scales.shape[1] < columns // MXFP8.block[1]:
        raise ValueError(
            f"{name}: rowwise scales are {tuple(scales.shape)}, too few for a weight of shape "
            f"{(rows, columns)} on grid {MXFP8.id!r}"
        )
    cropped = scales.view(torch.uint8)[:rows, : columns // MXFP8.block[1]].contiguous()
    return MXTensor.from_bytes(data.view(torch.uint8), cropped, grid=MXFP8)


class TEWeights:
    """What ``EmulatedWeights`` is for the emulation; Transformer Engine keeps its own copies."""

    def __init__(self, model: nn.Module) -> None:
        self._parameters = dict(model.named_parameters())
        self.head = output_weight(model)
        self.quantizations = 0
        self.refresh_seconds = 0.0

    def refresh(self) -> None:
        """Nothing to do: the optimizer step has quantized the MXFP8 parameters."""

    def project(self, hidden: Tensor) -> Tensor:
        """The output layer on ``hidden`` [R, hidden]: logits [R, vocabulary], bf16."""
        return nn.functional.linear(hidden, self.head)

    def read(self, name: str) -> MXTensor | Tensor:
        """The rowwise bytes of parameter ``name``, or its bf16 values if it is not quantized."""
        weight = self._parameters[name]
        return read_rowwise(weight, name=name) if hasattr(weight, "_rowwise_data") else weight

    def scoring_on(self, grid_of: Callable[[int], Grid | None]) -> AbstractContextManager[None]:
        """Raises NotImplementedError: these modules compute on their own grid only."""
        del grid_of
        raise NotImplementedError(
            "scoring in another precision than the live one is not available with Transformer "
            "Engine; score with a learner of that precision"
        )
