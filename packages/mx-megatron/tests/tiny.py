"""Tiny random models as Hugging Face checkpoints, written without transformers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from mx_megatron.architecture import parse_architecture
from mx_megatron.names import parameter_maps


@dataclass(frozen=True)
class Sequence:
    prompt: list[int]
    completion: list[int]


def tiny_config(architecture: str = "Qwen3ForCausalLM", **changes: Any) -> dict[str, Any]:
    return {
        "architectures": [architecture],
        "model_type": {"Qwen3ForCausalLM": "qwen3", "LlamaForCausalLM": "llama"}.get(
            architecture, "other"
        ),
        "hidden_act": "silu",
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "vocab_size": 512,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "tie_word_embeddings": False,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "dtype": "bfloat16",
    } | changes


def tiny_tensors(config: dict[str, Any], *, seed: int = 0) -> dict[str, torch.Tensor]:
    arch = parse_architecture(config, where="test")
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for entry in parameter_maps(arch):
        for name, shape in entry.parts:
            noise = torch.randn(shape, generator=generator)
            value = noise * 0.08 if len(shape) == 2 else 1 + noise * 0.1
            tensors[name] = value.to(torch.bfloat16)
    return tensors


def write_checkpoint(
    directory: Path,
    config: dict[str, Any],
    tensors: dict[str, torch.Tensor] | None = None,
    *,
    shards: int = 1,
) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    tensors = tiny_tensors(config) if tensors is None else tensors
    if shards == 1:
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
        return directory
    weight_map = {}
    for index in range(shards):
        name = f"model-{index + 1:05d}-of-{shards:05d}.safetensors"
        part = dict(list(tensors.items())[index::shards])
        save_file(part, directory / name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, name)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return directory


def random_sequences(count: int = 6, *, seed: int = 1, vocab: int = 512) -> list[Sequence]:
    generator = torch.Generator().manual_seed(seed)

    def tokens(low: int, high: int) -> list[int]:
        length = int(torch.randint(low, high, (1,), generator=generator))
        return torch.randint(0, vocab, (length,), generator=generator).tolist()

    return [Sequence(tokens(2, 9), tokens(1, 24)) for _ in range(count)]


def reinforce(sequences: list[Sequence], *, seed: int = 2) -> Any:
    """A loss with one random advantage per sequence, normalised by all tokens of the batch."""
    weights = torch.randn(len(sequences), generator=torch.Generator().manual_seed(seed))
    total = sum(len(s.completion) for s in sequences)

    def loss_fn(log_probs: list[torch.Tensor], indices: list[int]) -> Any:
        terms = [lp.sum() * weights[i] for lp, i in zip(log_probs, indices, strict=True)]
        return -torch.stack(terms).sum() / total, {"seen": float(len(indices))}

    return loss_fn
