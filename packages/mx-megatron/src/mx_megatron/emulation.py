"""MXFP8 linear layers for Megatron-Core without Transformer Engine, injected by a spec provider.

Each linear layer owns the ``LinearWeights`` that its GEMMs read. They are made once per optimizer
step by ``refresh`` and serve every micro-batch until the next; nothing else quantizes a weight.
``tensor._version`` is no key for such a cache: the distributed optimizer writes parameters through
a flat buffer and the version does not move.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from mx_megatron.attention import CausalAttention
from mx_megatron.mcore import (
    AttnMaskType,
    ColumnParallelLinear,
    IdentityOp,
    LocalSpecProvider,
    ModuleSpec,
    RowParallelLinear,
    SelfAttention,
    SelfAttentionSubmodules,
    TransformerBlockSubmodules,
    TransformerLayer,
    TransformerLayerSubmodules,
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
    get_bias_dropout_add,
    get_mlp_module_spec_for_backend,
)
from mx_quant import Grid, LinearWeights, MXTensor, linear


def prepare(weight: Tensor, *, grid: Grid | None, backward: bool = True) -> LinearWeights:
    """What a GEMM reads for ``weight`` [N, K]: its bytes on ``grid``, or the bf16 values."""
    with torch.no_grad():
        if grid is None:
            return LinearWeights.plain(weight.detach())
        return LinearWeights.quantize(weight.detach(), grid=grid, backward=backward)


def _renew(held: LinearWeights | None, weight: Tensor, grid: Grid | None) -> LinearWeights:
    # In place after the first time: the operands of a whole model are gigabytes, and allocating
    # them anew costs more than filling them.
    if held is None:
        return prepare(weight, grid=grid)
    with torch.no_grad():
        held.update_from(weight.detach())
    return held


class _Emulated:
    """The GEMM of a Megatron-Core linear layer on ``grid`` (None: bf16), by ``mx_quant.linear``."""

    grid: Grid | None = None
    prepared: LinearWeights | None = None

    def _forward_impl(
        self,
        input: Tensor,
        weight: nn.Parameter,
        bias: Tensor | None = None,
        *,
        allreduce_dgrad: bool = False,
        sequence_parallel: bool = False,
        tp_group: Any = None,
        **_: Any,
    ) -> Tensor:
        if self.prepared is None:
            raise RuntimeError("linear layer used before its weights were prepared by refresh()")
        x = input
        if sequence_parallel:
            x = gather_from_sequence_parallel_region(x, group=tp_group)
        elif allreduce_dgrad:
            x = copy_to_tensor_model_parallel_region(x, group=tp_group)
        y = linear(x, weight, self.prepared, grid=self.grid)
        return y if bias is None else y + bias


class EmulatedColumnLinear(_Emulated, ColumnParallelLinear):  # type: ignore[misc]
    """Column-parallel linear layer on a grid."""


class EmulatedRowLinear(_Emulated, RowParallelLinear):  # type: ignore[misc]
    """Row-parallel linear layer on a grid."""


class EmulatedSpecProvider(LocalSpecProvider):  # type: ignore[misc]
    """Megatron-Core's local modules with our linear layers and attention core."""

    def column_parallel_linear(self) -> type:
        return EmulatedColumnLinear

    def row_parallel_linear(self) -> type:
        return EmulatedRowLinear

    def core_attention(self) -> type:
        return CausalAttention


def block_spec(config: Any, *, provider: Any) -> Any:
    """The decoder's spec with the modules of ``provider``, norms apart from linear layers."""
    norm = provider.layer_norm(rms_norm=True, has_residual=True)
    qk_norm = provider.layer_norm(rms_norm=True, for_qk=True) if config.qk_layernorm else IdentityOp
    attention = ModuleSpec(
        module=SelfAttention,
        params={"attn_mask_type": AttnMaskType.causal},
        submodules=SelfAttentionSubmodules(
            linear_qkv=provider.column_parallel_linear(),
            core_attention=provider.core_attention(),
            linear_proj=provider.row_parallel_linear(),
            q_layernorm=qk_norm,
            k_layernorm=qk_norm,
        ),
    )
    layer = ModuleSpec(
        module=TransformerLayer,
        submodules=TransformerLayerSubmodules(
            input_layernorm=norm,
            self_attention=attention,
            self_attn_bda=get_bias_dropout_add,
            pre_mlp_layernorm=norm,
            mlp=get_mlp_module_spec_for_backend(
                backend=provider, num_experts=None, moe_grouped_gemm=False
            ),
            mlp_bda=get_bias_dropout_add,
        ),
    )
    return TransformerBlockSubmodules(layer_specs=[layer] * config.num_layers, layer_norm=norm)


@dataclass(slots=True)
class EmulatedWeights:
    """The prepared weights of a whole model: its linear layers and its output layer.

    ``layers`` are (module name, decoder layer, module); ``head`` is the weight of the output layer
    (the embedding when tied), always bf16. ``quantizations`` counts calls of the quantizer over
    the model's life: one per layer on the grid and refresh.
    """

    layers: tuple[tuple[str, int, _Emulated], ...]
    head: nn.Parameter
    prepared_head: LinearWeights | None = None
    quantizations: int = 0
    refresh_seconds: float = 0.0
    _by_name: dict[str, _Emulated] = field(default_factory=dict)

    @classmethod
    def of(cls, model: nn.Module, *, grid_of: Callable[[int], Grid | None]) -> EmulatedWeights:
        """Finds the model's linear layers, gives each its grid, and prepares all weights."""
        layers = tuple(
            (name, int(name.split(".")[2]), module)
            for name, module in model.named_modules()
            if isinstance(module, _Emulated)
        )
        for _, layer, module in layers:
            module.grid = grid_of(layer)
        weights = cls(layers, output_weight(model))
        weights._by_name = {name: module for name, _, module in layers}
        weights.refresh()
        return weights

    def refresh(self) -> None:
        """Quantizes every weight on the grid once, after the optimizer has changed them."""
        start = time.perf_counter()
        for _, _, module in self.layers:
            module.prepared = _renew(module.prepared, _weight(module), module.grid)
            self.quantizations += module.grid is not None
        self.prepared_head = _renew(self.prepared_head, self.head, None)
        self.refresh_seconds = time.perf_counter() - start

    def read(self, name: str) -> MXTensor | Tensor:
        """What the forward GEMM of parameter ``name`` reads: its bytes on the grid, or bf16."""
        module = self.module(name.removesuffix(".weight"))
        if module.prepared is None or module.prepared.rowwise is None:
            return _weight(module)
        return module.prepared.rowwise

    def module(self, name: str) -> _Emulated:
        """The linear layer called ``name`` (Megatron-Core's module name)."""
        return self._by_name[name]

    def project(self, hidden: Tensor) -> Tensor:
        """The output layer on ``hidden`` [R, hidden]: logits [R, vocabulary], bf16."""
        if self.prepared_head is None:
            raise RuntimeError("output layer used before its weights were prepared by refresh()")
        return linear(hidden, self.head, self.prepared_head, grid=None)

    @contextlib.contextmanager
    def scoring_on(self, grid_of: Callable[[int], Grid | None]) -> Iterator[None]:
        """Computes on other grids for a while, forward only; the live weights come back after."""
        held = [(module, module.grid, module.prepared) for _, _, module in self.layers]
        try:
            for _, layer, module in self.layers:
                grid = grid_of(layer)
                if grid != module.grid:
                    module.prepared = prepare(_weight(module), grid=grid, backward=False)
                    module.grid = grid
            yield
        finally:
            for module, grid, prepared in held:
                module.grid, module.prepared = grid, prepared


def output_weight(model: Any) -> nn.Parameter:
    """The weight of the output layer: its own, or the embedding when the model ties them.

    Not ``GPTModel.shared_embedding_or_output_weight``: on a stage with the embedding that returns
    the embedding whether or not the model ties it.
    """
    tied = model.share_embeddings_and_output_weights
    owner = model.embedding.word_embeddings if tied else model.output_layer
    weight: nn.Parameter = owner.weight
    return weight


def _weight(module: _Emulated) -> nn.Parameter:
    weight = getattr(module, "weight", None)
    if not isinstance(weight, nn.Parameter):
        raise RuntimeError(f"{type(module).__name__} has no weight of its own")
    return weight
