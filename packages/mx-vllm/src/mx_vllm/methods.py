"""The linear layers and embeddings of the sampler, as vLLM methods.

Shapes: N output rows, K input columns, T tokens. A layer keeps its canonical parameters readable
(``weight``, and ``weight_scale`` on the grid), and beside them ``mx_operand``, which is what the
GEMM reads. The operand is filled in ``process_weights_after_loading``, at boot and again on every
live update, in the same memory.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from vllm.model_executor.layers.linear import LinearMethodBase
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.parameter import ModelWeightParameter
from vllm.model_executor.utils import set_weight_attrs

from mx_quant import MXTensor, Operand, linear_forward
from mx_quant.grids import Grid

_TIED = "mx_tied_embedding"


def operand_of(layer: nn.Module) -> Operand:
    """What ``layer``'s GEMM reads. Raises AttributeError for a layer that is not ours."""
    operand: Operand = tied_embedding(layer).__dict__["mx_operand"]
    return operand


def tied_embedding(layer: nn.Module) -> nn.Module:
    """The embedding whose weight an output layer shares, or the layer itself."""
    source: nn.Module = layer.__dict__.get(_TIED, layer)
    return source


def is_tied(layer: nn.Module) -> bool:
    """Whether ``layer`` is an output layer without a weight of its own."""
    return _TIED in layer.__dict__


def refresh(layer: nn.Module, weight: MXTensor | Tensor) -> None:
    """Make ``weight`` what the GEMM of ``layer`` reads, in the memory that it already reads."""
    held: Operand | None = layer.__dict__.get("mx_operand")
    if held is not None:
        held.load(weight)
    elif isinstance(weight, MXTensor):
        layer.__dict__["mx_operand"] = Operand.from_mx(weight)
    else:
        layer.__dict__["mx_operand"] = Operand.from_tensor(weight)


class MxLinearMethod(LinearMethodBase):
    """A linear layer on ``grid`` (emulated W8A8), or in BF16 with ``grid=None``."""

    def __init__(self, *, grid: Grid | None, name: str) -> None:
        self.grid = grid
        self.name = name

    def create_weights(
        self,
        layer: nn.Module,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        loader = extra_weight_attrs.pop("weight_loader")
        shape = (sum(output_partition_sizes), input_size_per_partition)
        tensors = {"weight": torch.empty(shape, dtype=params_dtype)}
        if self.grid is not None:
            tensors = {
                "weight": torch.empty(shape, dtype=self.grid.element.torch_dtype),
                "weight_scale": torch.empty(self._scale_shape(shape), dtype=self.grid.scale_dtype),
            }
        for name, data in tensors.items():
            parameter = ModelWeightParameter(
                data=data, input_dim=1, output_dim=0, weight_loader=loader
            )
            layer.register_parameter(name, parameter)
            set_weight_attrs(parameter, extra_weight_attrs)

    def _scale_shape(self, shape: tuple[int, int]) -> tuple[int, ...]:
        assert self.grid is not None
        try:
            return self.grid.scale_shape(shape, axis=-1)
        except ValueError as error:
            raise ValueError(
                f"{self.name}.weight does not fit grid {self.grid.id}: {error}; list the layer in "
                "quantization_config.ignore"
            ) from error

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        if self.grid is None:
            refresh(layer, layer.get_parameter("weight").data)
        else:
            elements, scales = (layer.get_parameter(n).data for n in ("weight", "weight_scale"))
            refresh(layer, MXTensor(elements, scales, self.grid))

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x ``[..., K]`` bf16 -> ``[..., N]`` bf16; a bias is added in bf16."""
        y = linear_forward(x, layer.__dict__["mx_operand"], grid=self.grid)
        return y if bias is None else y + bias


class MxEmbeddingMethod(QuantizeMethodBase):
    """Embedding table and output layer, in BF16.

    A tied output layer has no weight: it reads the operand of the embedding, which is rebuilt
    whenever the embedding is loaded. vLLM 0.32's own method packs the tied weight once, and its
    reload, which refreshes only modules that weights were loaded into, leaves that copy stale.
    """

    def __init__(self, *, name: str) -> None:
        self.name = name

    def create_weights(
        self,
        layer: Any,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        shape = (sum(output_partition_sizes), input_size_per_partition)
        weight = nn.Parameter(torch.zeros(shape, dtype=params_dtype), requires_grad=False)
        set_weight_attrs(weight, {"input_dim": 1, "output_dim": 0, **extra_weight_attrs})
        # vLLM pads the vocabulary. Its reload waits for the padding too, and keeps the received
        # tensor until the end of the update, unless it is told how much a checkpoint delivers.
        set_weight_attrs(
            weight, {"weight_loader_numel": layer.org_vocab_size * input_size_per_partition}
        )
        layer.register_parameter("weight", weight)

    def tie_weights(self, layer: nn.Module, embed_tokens: nn.Module) -> nn.Module:
        # Shared until the first load is over, so that vLLM knows a stored lm_head.weight as a
        # second name. In __dict__, because an attribute would make the embedding a submodule.
        layer.weight = embed_tokens.weight
        layer.__dict__[_TIED] = embed_tokens
        embed_tokens.__dict__["mx_has_tied_head"] = True
        return layer

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        if is_tied(layer):
            layer._parameters.pop("weight", None)
        elif isinstance(layer, ParallelLMHead) or "mx_has_tied_head" in layer.__dict__:
            refresh(layer, layer.get_parameter("weight").data)

    def embedding(self, layer: Any, input_: Tensor) -> Tensor:
        return nn.functional.embedding(input_, layer.weight)

    def apply(self, layer: nn.Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Hidden states ``[T, K]`` bf16 -> logits ``[T, padded vocabulary]`` bf16."""
        y = linear_forward(x, operand_of(layer), grid=None)
        return y if bias is None else y + bias
