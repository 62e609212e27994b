"""Which Hugging Face tensors make up which Megatron-Core parameter, and their shapes."""

from __future__ import annotations

from dataclasses import dataclass

from mx_megatron.architecture import Architecture
from mx_megatron.layout import Fusion

EMBEDDING = "embedding.word_embeddings.weight"
OUTPUT = "output_layer.weight"
HF_EMBEDDING = "model.embed_tokens.weight"
HF_OUTPUT = "lm_head.weight"


@dataclass(frozen=True, slots=True)
class ParameterMap:
    """One Megatron-Core parameter: its name, the Hugging Face tensors it is made of, the rule.

    ``parts`` are (Hugging Face name, shape). ``layer`` is the decoder layer's index, or None.
    ``linear`` marks the weights that may lie on a grid.
    """

    name: str
    parts: tuple[tuple[str, tuple[int, ...]], ...]
    fusion: Fusion
    layer: int | None
    linear: bool

    @property
    def module(self) -> str:
        """Name of the module that owns the parameter."""
        return self.name.removesuffix(".weight")


def parameter_maps(arch: Architecture) -> tuple[ParameterMap, ...]:
    """Every parameter of the model, in Hugging Face's order of tensors."""
    vocab = (arch.vocab_size, arch.hidden_size)
    maps = [_single(EMBEDDING, HF_EMBEDDING, vocab)]
    for layer in range(arch.num_layers):
        maps += _layer(arch, layer)
    maps.append(_single("decoder.final_layernorm.weight", "model.norm.weight", (arch.hidden_size,)))
    if not arch.tied_embeddings:
        maps.append(_single(OUTPUT, HF_OUTPUT, vocab))
    return tuple(maps)


def aliases(arch: Architecture) -> tuple[tuple[str, str], ...]:
    """(alias, name) pairs of Hugging Face names that share one tensor."""
    return ((HF_OUTPUT, HF_EMBEDDING),) if arch.tied_embeddings else ()


def _single(
    name: str, hf_name: str, shape: tuple[int, ...], layer: int | None = None, linear: bool = False
) -> ParameterMap:
    return ParameterMap(name, ((hf_name, shape),), Fusion.SINGLE, layer, linear)


def _layer(arch: Architecture, layer: int) -> list[ParameterMap]:
    ours, theirs = f"decoder.layers.{layer}.", f"model.layers.{layer}."
    hidden, ffn, head = arch.hidden_size, arch.ffn_size, arch.head_dim
    q_rows, kv_rows = arch.num_heads * head, arch.num_kv_heads * head
    attention, mlp = theirs + "self_attn.", theirs + "mlp."
    qkv = (
        (attention + "q_proj.weight", (q_rows, hidden)),
        (attention + "k_proj.weight", (kv_rows, hidden)),
        (attention + "v_proj.weight", (kv_rows, hidden)),
    )
    gate_up = (
        (mlp + "gate_proj.weight", (ffn, hidden)),
        (mlp + "up_proj.weight", (ffn, hidden)),
    )
    core = ours + "self_attention."

    def one(name: str, hf_name: str, shape: tuple[int, ...], linear: bool = False) -> ParameterMap:
        return _single(name, hf_name, shape, layer, linear)

    norms = []
    if arch.qk_norm:
        norms = [
            one(core + "q_layernorm.weight", attention + "q_norm.weight", (head,)),
            one(core + "k_layernorm.weight", attention + "k_norm.weight", (head,)),
        ]
    return [
        one(ours + "input_layernorm.weight", theirs + "input_layernorm.weight", (hidden,)),
        ParameterMap(core + "linear_qkv.weight", qkv, Fusion.QKV, layer, True),
        *norms,
        one(core + "linear_proj.weight", attention + "o_proj.weight", (hidden, q_rows), True),
        one(
            ours + "pre_mlp_layernorm.weight",
            theirs + "post_attention_layernorm.weight",
            (hidden,),
        ),
        ParameterMap(ours + "mlp.linear_fc1.weight", gate_up, Fusion.GATE_UP, layer, True),
        one(ours + "mlp.linear_fc2.weight", mlp + "down_proj.weight", (hidden, ffn), True),
    ]
