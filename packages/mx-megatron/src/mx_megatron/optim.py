"""Megatron-Core's DDP wrapper and distributed optimizer; bad gradients change nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mx_megatron.compat import expected_warnings
from mx_megatron.mcore import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    DistributedOptimizer,
    OptimizerConfig,
    clip_grad_by_total_norm_fp32,
    finalize_model_grads,
    get_megatron_optimizer,
)


class NonFiniteStep(RuntimeError):
    """A loss or gradient was NaN or infinite. The weights are those from before the step."""


@dataclass(frozen=True, slots=True)
class AdamSettings:
    """AdamW: constant learning rate, decoupled weight decay, clipping by global norm (0: none)."""

    learning_rate: float
    weight_decay: float
    betas: tuple[float, float]
    eps: float
    clip_grad: float

    def __post_init__(self) -> None:
        if not self.learning_rate >= 0 or not self.weight_decay >= 0 or not self.clip_grad >= 0:
            raise ValueError(
                f"learning_rate={self.learning_rate}, weight_decay={self.weight_decay}, "
                f"clip_grad={self.clip_grad}; expected numbers >= 0"
            )


class Optimizer:
    """bf16 parameters with fp32 master weights and moments, sharded by the distributed optimizer.

    Gradients are accumulated in fp32 over micro-batches.
    """

    def __init__(self, model: Any, settings: AdamSettings) -> None:
        self.settings = settings
        self.ddp: Any
        self.chain: Any
        with expected_warnings():
            self._build(model)
        for part in self.parts:
            if isinstance(part.optimizer, torch.optim.AdamW):
                for group in part.optimizer.param_groups:
                    # One pass over memory per tensor instead of a dozen.
                    group["fused"], group["foreach"] = True, False

    def _build(self, model: Any) -> None:
        settings = self.settings
        self.ddp = DistributedDataParallel(
            model.config,
            DistributedDataParallelConfig(
                grad_reduce_in_fp32=True,
                overlap_grad_reduce=False,
                use_distributed_optimizer=True,
                check_for_nan_in_grad=False,  # step() checks, and names what to do
            ),
            model,
        )
        self.chain = get_megatron_optimizer(
            OptimizerConfig(
                optimizer="adam",
                lr=settings.learning_rate,
                min_lr=settings.learning_rate,
                weight_decay=settings.weight_decay,
                adam_beta1=settings.betas[0],
                adam_beta2=settings.betas[1],
                adam_eps=settings.eps,
                clip_grad=settings.clip_grad,
                bf16=True,
                params_dtype=torch.bfloat16,
                use_distributed_optimizer=True,
            ),
            [self.ddp],
        )

    @property
    def parts(self) -> list[Any]:
        """The distributed optimizers in the chain. Raises RuntimeError for another kind."""
        parts = list(getattr(self.chain, "chained_optimizers", [self.chain]))
        if not all(isinstance(part, DistributedOptimizer) for part in parts):
            kinds = ", ".join(type(part).__name__ for part in parts)
            raise RuntimeError(f"expected DistributedOptimizer parts, Megatron-Core built {kinds}")
        return parts

    def slot(self, parameter: torch.nn.Parameter) -> tuple[Tensor, dict[str, Any]]:
        """The fp32 master of ``parameter`` (flat) and its moments, none before the first step."""
        for part in self.parts:
            if parameter in part.model_param_group_index_map:
                group, order = part.model_param_group_index_map[parameter]
                main: Tensor = part.optimizer.param_groups[group]["params"][order]
                return main, part.optimizer.state.get(main, {})
        raise RuntimeError("a parameter belongs to no distributed optimizer")

    def zero_grad(self) -> None:
        """Forgets the gradients of an earlier or abandoned step."""
        self.ddp.zero_grad_buffer()
        self.chain.zero_grad()

    def step(self) -> float:
        """Applies the accumulated gradients; returns their global norm before clipping.

        Raises NonFiniteStep before anything changes if the norm is not finite.
        """
        with expected_warnings():
            return self._step()

    def _step(self) -> float:
        finalize_model_grads([self.ddp])
        self.chain.prepare_grads()
        norm = float(self.chain.get_grad_norm())
        if not math.isfinite(norm):
            raise NonFiniteStep(
                f"gradient norm is {norm}: no weight was changed. Look for extreme rewards, "
                "advantages or ratios in this batch, or lower the learning rate"
            )
        limit = self.settings.clip_grad
        if 0 < limit < norm:
            for part in self.parts:
                clip_grad_by_total_norm_fp32(part.get_parameters(), limit, norm)
        self.chain.step_with_ready_grads()
        return norm
