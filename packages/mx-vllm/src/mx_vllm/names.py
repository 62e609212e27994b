"""Canonical names of the live model, read from its modules.

A canonical name is the checkpoint's (Hugging Face's): ``model.layers.0.self_attn.q_proj.weight``.
vLLM fuses some modules (``qkv_proj``, ``gate_up_proj``); a ``Place`` says where a canonical tensor
lives and under which shard id vLLM's own loader takes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn
from vllm.model_executor.layers.linear import LinearBase, QKVParallelLinear
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

from mx_quant.grids import Grid
from mx_vllm.configs import canonical_modules
from mx_vllm.methods import MxEmbeddingMethod, MxLinearMethod, is_tied


@dataclass(frozen=True, slots=True)
class Place:
    """One canonical tensor in the live model.

    ``module`` and ``parameter``: vLLM's names. ``rows``: its rows of the parameter. ``shard``: what
    vLLM's loader calls these rows, None where nothing is fused. ``shape``: canonical. ``operand``:
    whether a GEMM reads it through an operand; other tensors are read as they are stored.
    """

    name: str
    module: str
    parameter: str
    rows: tuple[int, int]
    shard: str | int | None
    shape: tuple[int, ...]
    grid: Grid | None
    operand: bool
    tied: bool = False


def canonical_places(model: nn.Module) -> dict[str, Place]:
    """Every canonical tensor of ``model``, tied output layer included, by name.

    Raises RuntimeError for a module with parameters whose method is not this package's: that is a
    layer that fell back to something else. All of them are named.
    """
    packed: dict[str, list[str]] = getattr(model, "packed_modules_mapping", {})
    places: dict[str, Place] = {}
    strangers: list[str] = []
    for name, module in model.named_modules():
        method = getattr(module, "quant_method", None)
        if isinstance(module, LinearBase):
            if isinstance(method, MxLinearMethod):
                found = _linear(name, module, method, packed)
            else:
                found = iter(())
                strangers.append(f"{name} ({type(method).__name__})")
        elif isinstance(module, VocabParallelEmbedding):
            if isinstance(method, MxEmbeddingMethod):
                found = iter((_embedding(name, module),))
            else:
                found = iter(())
                strangers.append(f"{name} ({type(method).__name__})")
        else:
            found = _plain(name, module)
        places.update((place.name, place) for place in found)
    if strangers:
        raise RuntimeError(
            f"layers that mx-vllm does not serve: {', '.join(strangers)}; their weights cannot be "
            "read back: boot with quantization mx_bf16 or a serialized MXFP8 checkpoint"
        )
    return places


def _linear(
    name: str, module: LinearBase, method: MxLinearMethod, packed: dict[str, list[str]]
) -> Iterator[Place]:
    parts = canonical_modules(name, packed)
    sizes: list[int] = module.output_partition_sizes
    if len(sizes) != len(parts):
        raise RuntimeError(f"{name} has {len(sizes)} row blocks for {parts}")
    ids: list[str | int | None] = [None]
    if len(parts) > 1:
        ids = ["q", "k", "v"] if isinstance(module, QKVParallelLinear) else list(range(len(parts)))
    columns = module.input_size_per_partition
    start = 0
    for part, size, shard in zip(parts, sizes, ids, strict=True):
        rows = (start, start + size)
        yield Place(
            f"{part}.weight", name, "weight", rows, shard, (size, columns), method.grid, True
        )
        if module._parameters.get("bias") is not None:
            yield Place(f"{part}.bias", name, "bias", rows, shard, (size,), None, False)
        start += size


def _embedding(name: str, module: VocabParallelEmbedding) -> Place:
    shape = (module.org_vocab_size, module.embedding_dim)
    head = type(module) is not VocabParallelEmbedding
    return Place(
        f"{name}.weight", name, "weight", (0, shape[0]), None, shape, None, head, is_tied(module)
    )


def _plain(name: str, module: nn.Module) -> Iterator[Place]:
    for key, parameter in module.named_parameters(recurse=False):
        shape = tuple(parameter.shape)
        yield Place(f"{name}.{key}", name, key, (0, shape[0]), None, shape, None, False)
