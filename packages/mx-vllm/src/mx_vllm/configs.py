"""Which method serves which layer: vLLM's quantization configs, decided by exact names."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.quantization.base_config import (
    QuantizationConfig,
    QuantizeMethodBase,
)
from vllm.model_executor.layers.quantization.modelopt import ModelOptMxFp8Config
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

from mx_quant.grids import MXFP8, Grid
from mx_vllm.checkpoint import ignored_modules
from mx_vllm.methods import MxEmbeddingMethod, MxLinearMethod


class _MxConfig(QuantizationConfig):
    """Every linear, embedding and output layer gets a method whose weights stay readable."""

    def __init__(self, ignored: frozenset[str] = frozenset()) -> None:
        super().__init__()
        self.ignored = ignored

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        return [torch.bfloat16]

    @classmethod
    def get_min_capability(cls) -> int:
        return 0

    @staticmethod
    def get_config_filenames() -> list[str]:
        return []

    def grid_of(self, prefix: str) -> Grid | None:
        """The grid of the linear layer ``prefix``, None for BF16."""
        raise NotImplementedError

    def get_quant_method(self, layer: nn.Module, prefix: str) -> QuantizeMethodBase | None:
        if isinstance(layer, LinearBase):
            return MxLinearMethod(grid=self.grid_of(prefix), name=prefix)
        if isinstance(layer, VocabParallelEmbedding):
            return MxEmbeddingMethod(name=prefix)
        return None

    def apply_vllm_mapper(self, hf_to_vllm_mapper: Any) -> None:
        """Nothing to map: names stay those of the checkpoint, fused ones are expanded on use."""


class MxBf16Config(_MxConfig):
    """No grid anywhere."""

    def get_name(self) -> str:
        return "mx_bf16"

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> MxBf16Config:
        return cls()

    def grid_of(self, prefix: str) -> Grid | None:
        return None


class MxFp8Config(_MxConfig):
    """Serialized MXFP8: every linear layer but the ignored ones, which are matched by full name."""

    def get_name(self) -> str:
        return "modelopt_mxfp8"

    @classmethod
    def override_quantization_method(
        cls, hf_quant_cfg: Any, user_quant: Any, hf_config: Any = None
    ) -> Any:
        """vLLM's own detection: checkpoints say ``modelopt`` and name the algorithm beside it."""
        return ModelOptMxFp8Config.override_quantization_method(hf_quant_cfg, user_quant, hf_config)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> MxFp8Config:
        return cls(ignored_modules(config))

    def grid_of(self, prefix: str) -> Grid | None:
        parts = canonical_modules(prefix, self.packed_modules_mapping)
        ignored = [part for part in parts if part in self.ignored]
        if ignored and len(ignored) != len(parts):
            raise ValueError(
                f"{prefix} fuses {', '.join(parts)}, of which only {', '.join(ignored)} are "
                "ignored: vLLM computes them in one GEMM; put all of them on the grid, or none"
            )
        return None if ignored else MXFP8


def canonical_modules(prefix: str, packed: dict[str, list[str]]) -> list[str]:
    """Checkpoint names of the modules that vLLM serves as ``prefix``, in row order."""
    parent, _, last = prefix.rpartition(".")
    parts = packed.get(last, [last])
    return [f"{parent}.{part}" if parent else part for part in parts]
