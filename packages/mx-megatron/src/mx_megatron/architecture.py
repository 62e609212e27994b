"""The shape of a supported Hugging Face model, read from its config.json."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_QK_NORM = {"LlamaForCausalLM": False, "Qwen3ForCausalLM": True}

SUPPORTED = tuple(_QK_NORM)


@dataclass(frozen=True, slots=True)
class Architecture:
    """A dense decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU, no biases.

    ``norm_eps`` and ``rope_theta`` are as in config.json; ``qk_norm`` says whether queries and
    keys are normalized per head (Qwen3).
    """

    name: str
    num_layers: int
    hidden_size: int
    ffn_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_positions: int
    norm_eps: float
    rope_theta: float
    tied_embeddings: bool
    qk_norm: bool

    @property
    def qkv_rows(self) -> int:
        """Rows of the fused QKV weight."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim

    @property
    def linear_shapes(self) -> dict[str, tuple[int, int]]:
        """[rows, K] of the four linear layers of a decoder layer, by Megatron-Core's name."""
        return {
            "self_attention.linear_qkv": (self.qkv_rows, self.hidden_size),
            "self_attention.linear_proj": (self.hidden_size, self.num_heads * self.head_dim),
            "mlp.linear_fc1": (2 * self.ffn_size, self.hidden_size),
            "mlp.linear_fc2": (self.hidden_size, self.ffn_size),
        }


def read_config(directory: Path) -> dict[str, Any]:
    """The parsed config.json of a checkpoint directory.

    Raises FileNotFoundError naming what is missing, ValueError if it is not a JSON object.
    """
    if not directory.is_dir():
        raise FileNotFoundError(
            f"no checkpoint directory at {directory}; expected a Hugging Face checkpoint folder "
            "with config.json and safetensors weights"
        )
    path = directory / "config.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"{directory} holds no config.json, so it is not a Hugging Face checkpoint; expected "
            "config.json and safetensors weights in it"
        )
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise ValueError(f"{path} holds a {type(config).__name__}, expected a JSON object")
    return config


def parse_architecture(config: dict[str, Any], *, where: str) -> Architecture:
    """The Architecture of a config.json.

    Raises ValueError that lists every unsupported or missing setting at once.
    """
    names = config.get("architectures") or [None]
    name = names[0]
    if name not in _QK_NORM:
        raise ValueError(
            f"{where}: architecture {name!r} is not supported; supported: {', '.join(SUPPORTED)}"
        )
    problems = _unsupported(config)
    sizes = _sizes(config, problems)
    theta = _rope_theta(config, problems)
    if problems:
        raise ValueError(
            f"{where}: {name} with settings the learner does not support: " + "; ".join(problems)
        )
    heads = sizes["num_attention_heads"]
    return Architecture(
        name=name,
        num_layers=sizes["num_hidden_layers"],
        hidden_size=sizes["hidden_size"],
        ffn_size=sizes["intermediate_size"],
        num_heads=heads,
        num_kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or sizes["hidden_size"] // heads,
        vocab_size=sizes["vocab_size"],
        max_positions=sizes["max_position_embeddings"],
        norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        rope_theta=theta,
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        qk_norm=_QK_NORM[name],
    )


def _unsupported(config: dict[str, Any]) -> list[str]:
    required = {
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "use_sliding_window": False,
        "quantization_config": None,
    }
    problems = [
        f"{key}={config[key]!r} (expected {expected!r})"
        for key, expected in required.items()
        if config.get(key) not in (None, expected)
    ]
    if config.get("attention_dropout"):
        problems.append(f"attention_dropout={config['attention_dropout']!r} (expected 0)")
    heads, groups = config.get("num_attention_heads"), config.get("num_key_value_heads")
    if isinstance(heads, int) and isinstance(groups, int) and (groups < 1 or heads % groups):
        problems.append(
            f"num_attention_heads={heads} is no multiple of num_key_value_heads={groups}"
        )
    return problems


def _sizes(config: dict[str, Any], problems: list[str]) -> dict[str, int]:
    sizes = {}
    for key in (
        "num_hidden_layers",
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "vocab_size",
        "max_position_embeddings",
    ):
        value = config.get(key)
        if type(value) is int and value > 0:
            sizes[key] = value
        else:
            problems.append(f"{key}={value!r} (expected a positive integer)")
    return sizes


def _rope_theta(config: dict[str, Any], problems: list[str]) -> float:
    # transformers 5 writes rope_parameters; earlier releases rope_theta and rope_scaling.
    rope = dict(config.get("rope_scaling") or {}) | dict(config.get("rope_parameters") or {})
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        problems.append(f"rope type {kind!r} (expected 'default': no rope scaling)")
    partial = rope.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    if partial not in (None, 1.0):
        problems.append(f"partial_rotary_factor={partial!r} (expected 1.0)")
    return float(rope.get("rope_theta", config.get("rope_theta", 10000.0)))
