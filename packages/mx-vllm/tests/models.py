"""Tiny random models on disk, as BF16 and as serialized MXFP8 checkpoints, and their sources."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from mx_quant import MXTensor, quantize
from mx_quant.grids import MXFP8
from mx_sync import TensorSource, WeightVersion

SIZES = {
    "vocab_size": 300,  # not a multiple of 64: vLLM pads it
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "attention_bias": False,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "dtype": "bfloat16",
}


def config(kind: str, *, tied: bool, **changes: object) -> dict[str, object]:
    """config.json of a tiny model; ``kind``: "llama" or "qwen3"."""
    architecture = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}[kind]
    head = {"architectures": [architecture], "model_type": kind, "tie_word_embeddings": tied}
    return {**head, **SIZES, **changes}


def weights(cfg: dict[str, object], *, seed: int) -> dict[str, Tensor]:
    """Random BF16 tensors by canonical name, large enough that outputs differ between seeds."""
    h, f, v, d = (
        int(cfg[k]) for k in ("hidden_size", "intermediate_size", "vocab_size", "head_dim")
    )  # type: ignore[call-overload]
    q, kv = int(cfg["num_attention_heads"]) * d, int(cfg["num_key_value_heads"]) * d  # type: ignore[call-overload]
    generator = torch.Generator().manual_seed(seed)

    def rand(*shape: int, mean: float = 0.0, scale: float = 0.08) -> Tensor:
        return (mean + scale * torch.randn(*shape, generator=generator)).to(torch.bfloat16)

    out = {"model.embed_tokens.weight": rand(v, h, scale=0.1)}
    for i in range(int(cfg["num_hidden_layers"])):  # type: ignore[call-overload]
        p = f"model.layers.{i}."
        for name, shape in {
            "self_attn.q_proj": (q, h), "self_attn.k_proj": (kv, h), "self_attn.v_proj": (kv, h),
            "self_attn.o_proj": (h, q), "mlp.gate_proj": (f, h), "mlp.up_proj": (f, h),
            "mlp.down_proj": (h, f),
        }.items():  # fmt: skip
            out[f"{p}{name}.weight"] = rand(*shape)
        norms = {"input_layernorm": h, "post_attention_layernorm": h}
        if cfg["model_type"] == "qwen3":
            norms |= {"self_attn.q_norm": d, "self_attn.k_norm": d}
        for name, size in norms.items():
            out[f"{p}{name}.weight"] = rand(size, mean=1.0, scale=0.1)
    out["model.norm.weight"] = rand(h, mean=1.0, scale=0.1)
    if not cfg["tie_word_embeddings"]:
        out["lm_head.weight"] = rand(v, h, scale=0.1)
    return out


def on_grid(
    tensors: dict[str, Tensor], *, skip: tuple[str, ...] = ()
) -> dict[str, MXTensor | Tensor]:
    """Projections quantized, the rest as it is; ``skip``: parts of names that stay BF16."""
    return {
        name: quantize(t, grid=MXFP8)
        if name.endswith("_proj.weight") and not any(part in name for part in skip)
        else t
        for name, t in tensors.items()
    }


def write(path: Path, cfg: dict[str, object], tensors: dict[str, MXTensor | Tensor]) -> Path:
    """A checkpoint directory, serialized MXFP8 if anything in ``tensors`` is on the grid."""
    path.mkdir(parents=True)
    stored: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if isinstance(tensor, MXTensor):
            stored |= {name: tensor.elements, f"{name}_scale": tensor.scales}
        else:
            stored[name] = tensor
    if len(stored) > len(tensors):
        ignored = sorted(
            name.removesuffix(".weight")
            for name, t in tensors.items()
            if not isinstance(t, MXTensor) and t.ndim == 2
        )
        cfg = cfg | {
            "quantization_config": {
                "quant_method": "modelopt",
                "quant_algo": "MXFP8",
                "kv_cache_quant_algo": None,
                "ignore": sorted({*ignored, "lm_head"}),
            }
        }
    save_file(stored, path / "model.safetensors", metadata={"format": "pt"})
    (path / "config.json").write_text(json.dumps(cfg))
    return path


def source(
    cfg: dict[str, object], tensors: dict[str, MXTensor | Tensor], *, step: int, run: str = "test"
) -> TensorSource:
    """A learner that holds ``tensors``."""
    tied = [("lm_head.weight", "model.embed_tokens.weight")] if cfg["tie_word_embeddings"] else []
    return TensorSource(tensors, version=WeightVersion(run, step), aliases=tied)
