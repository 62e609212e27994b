"""The one emulated linear layer: forward, dgrad and wgrad with Transformer Engine's operands.

| GEMM    | activations or gradients | second operand    |
|---------|--------------------------|-------------------|
| forward | x rowwise                | weight rowwise    |
| dgrad   | dy rowwise               | weight columnwise |
| wgrad   | dy columnwise            | x columnwise      |

Shapes: x ``[..., K]``, weight ``[N, K]``, y ``[..., N]``; tokens (all leading axes) are T.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mx_quant.gemm import Gemm, compute_dtype, selected, weight_gradient
from mx_quant.grids import Grid
from mx_quant.operand import Operand
from mx_quant.quantize import quantize, quantize_both, quantize_into
from mx_quant.tensor import MXTensor

__all__ = [
    "Gemm",
    "LinearWeights",
    "Operand",
    "compute_dtype",
    "linear",
    "linear_forward",
    "selected",
]


def linear_forward(x: Tensor, operand: Operand, *, grid: Grid | None) -> Tensor:
    """``x @ weight.T`` in ``x.dtype``; x is quantized rowwise on the way when ``grid`` is given.

    A row's result does not depend, bitwise, on how many other rows there are or where it stands.
    """
    flat = x.reshape(-1, x.shape[-1])
    return operand.apply(flat, grid=grid).reshape(*x.shape[:-1], operand.outputs)


class LinearWeights:
    """One version of one weight: its rowwise bytes and the operands of forward and dgrad.

    ``rowwise`` is what a sync sends (None for a plain bf16 weight), ``forward`` what the forward
    GEMM reads, ``backward`` what the dgrad reads (None for inference only).
    """

    __slots__ = ("backward", "forward", "grid", "rowwise")

    def __init__(
        self,
        *,
        grid: Grid | None,
        rowwise: MXTensor | None,
        forward: Operand,
        backward: Operand | None,
    ) -> None:
        self.grid = grid
        self.rowwise = rowwise
        self.forward = forward
        self.backward = backward

    @classmethod
    def quantize(cls, w: Tensor, *, grid: Grid, backward: bool = True) -> LinearWeights:
        """Quantize ``w [N, K]`` once: rowwise, and columnwise too if ``backward``.

        Raises ValueError when K, or N with ``backward``, is not a multiple of the block.
        """
        if not backward:
            return cls.from_mx(quantize(w, grid=grid))
        rowwise, columnwise = quantize_both(w, grid=grid)
        return cls(
            grid=grid,
            rowwise=rowwise,
            forward=Operand.from_mx(rowwise),
            backward=Operand.from_mx(columnwise, transposed=True),
        )

    @classmethod
    def from_mx(cls, rowwise: MXTensor) -> LinearWeights:
        """Inference weights from received bytes. Raises ValueError for columnwise bytes."""
        if rowwise.axis != -1:
            raise ValueError("the forward GEMM reads rowwise bytes; got a columnwise tensor")
        forward = Operand.from_mx(rowwise)
        return cls(grid=rowwise.grid, rowwise=rowwise, forward=forward, backward=None)

    @classmethod
    def plain(cls, w: Tensor, *, backward: bool = True) -> LinearWeights:
        """A weight on no grid: the same GEMMs on its own values."""
        return cls(
            grid=None,
            rowwise=None,
            forward=Operand.from_tensor(w),
            backward=Operand.from_tensor(w, transposed=True) if backward else None,
        )

    def update_from(self, w: Tensor) -> None:
        """Quantize a new version of the weight into the existing memory."""
        if self.rowwise is None:
            self.forward.load(w)
            if self.backward is not None:
                self.backward.load(w)
            return
        if tuple(w.shape) != tuple(self.rowwise.shape):
            raise ValueError(f"weight {tuple(self.rowwise.shape)} updated from {tuple(w.shape)}")
        columnwise = quantize_into(w, self.rowwise, columnwise=self.backward is not None)
        self.forward.load(self.rowwise)
        if self.backward is not None and columnwise is not None:
            self.backward.load(columnwise)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        w: Tensor,
        weights: LinearWeights,
        grid: Grid | None,
        grad_grid: Grid | None,
    ) -> Tensor:
        # The wgrad quantizes the original x columnwise; bf16 x is the least that can be kept.
        ctx.save_for_backward(x)
        ctx.weights, ctx.grid, ctx.grad_grid, ctx.w_dtype = weights, grid, grad_grid, w.dtype
        return linear_forward(x, weights.forward, grid=grid)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        (x,) = ctx.saved_tensors
        dy_TN = dy.reshape(-1, dy.shape[-1])
        dx = dw = None
        if ctx.needs_input_grad[0]:
            operand = ctx.weights.backward
            if operand is None:
                raise RuntimeError(
                    f"the weight {ctx.weights.forward.shape} was prepared for inference; use "
                    "LinearWeights.quantize(w, grid=..., backward=True)"
                )
            dx = operand.apply(dy_TN, grid=ctx.grad_grid).reshape(x.shape)
        if ctx.needs_input_grad[1]:
            dw = weight_gradient(
                dy_TN,
                x.reshape(-1, x.shape[-1]),
                grid=ctx.grid,
                grad_grid=ctx.grad_grid,
                dtype=ctx.w_dtype,
            )
        return dx, dw, None, None, None


def linear(
    x: Tensor,
    w: Tensor,
    weights: LinearWeights,
    *,
    grid: Grid | None,
    grad_grid: Grid | None = None,
) -> Tensor:
    """``x @ w.T`` with gradients for x and w, computed from ``weights``, the quantized ``w``.

    ``w`` only receives its gradient (in ``w.dtype``); its values are not read. ``grad_grid`` is
    the grid of dy and defaults to ``grid``; ``grid=None`` is the plain layer. The caller
    refreshes ``weights`` once per optimizer step.

    Raises ValueError when ``weights`` are not on ``grid`` or shapes do not fit.
    """
    if weights.grid != grid:
        held = "no grid" if weights.grid is None else f"grid {weights.grid.id!r}"
        asked = "no grid" if grid is None else f"grid {grid.id!r}"
        raise ValueError(f"weights lie on {held}, the layer runs on {asked}; quantize them alike")
    of_dy = grad_grid if grad_grid is not None else grid
    y: Tensor = _Linear.apply(x, w, weights, grid, of_dy)  # type: ignore[no-untyped-call]
    return y
