"""A Megatron-Core GPTModel of a Hugging Face architecture."""

from __future__ import annotations

from typing import Any

import torch

from mx_megatron.architecture import Architecture
from mx_megatron.compat import Backend, expected_warnings, refuse_silent_bf16
from mx_megatron.emulation import EmulatedSpecProvider, block_spec
from mx_megatron.mcore import GPTModel, TransformerConfig
from mx_megatron.recipe import Recipe, select_layers

_BLOCK = 32


def transformer_config(arch: Architecture, **overrides: Any) -> Any:
    """The TransformerConfig of ``arch``: bf16, no dropout, no fusion that needs CUDA."""
    fields: dict[str, Any] = {
        "num_layers": arch.num_layers,
        "hidden_size": arch.hidden_size,
        "ffn_hidden_size": arch.ffn_size,
        "num_attention_heads": arch.num_heads,
        "num_query_groups": arch.num_kv_heads,
        "kv_channels": arch.head_dim,
        "normalization": "RMSNorm",
        "layernorm_epsilon": arch.norm_eps,
        "qk_layernorm": arch.qk_norm,
        "gated_linear_unit": True,
        "activation_func": torch.nn.functional.silu,
        "add_bias_linear": False,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "bf16": True,
        "params_dtype": torch.bfloat16,
        "pipeline_dtype": torch.bfloat16,
        "use_cpu_initialization": not torch.cuda.is_available(),
        "perform_initialization": False,  # every parameter is loaded, and the loader proves it
        "gradient_accumulation_fusion": False,
        "masked_softmax_fusion": False,
        "bias_activation_fusion": False,
        "bias_dropout_fusion": False,
        "apply_rope_fusion": False,
        "persist_layer_norm": False,
    }
    with expected_warnings():
        return TransformerConfig(**(fields | overrides))


def check_grid_fits(arch: Architecture, recipe: Recipe) -> None:
    """Raises ValueError if a weight on the grid has a side that is no multiple of 32.

    Both sides matter: rowwise blocks run along K, columnwise blocks along the rows.
    """
    selected = select_layers(recipe.layers, num_layers=arch.num_layers)
    if recipe.precision != "mxfp8" or not selected:
        return
    bad = {
        name: shape
        for name, shape in arch.linear_shapes.items()
        if any(size % _BLOCK for size in shape)
    }
    if bad:
        told = ", ".join(f"{name} [rows, K] = {list(shape)}" for name, shape in bad.items())
        raise ValueError(
            f"precision 'mxfp8' needs sides that are multiples of {_BLOCK} in every linear layer "
            f"on the grid; decoder layers {_spans(selected)} have {told}. Keep them in bf16 "
            "(layers='none' or precision='bf16') or use a model with other sizes"
        )


def build_model(arch: Architecture, recipe: Recipe, *, backend: Backend) -> Any:
    """A GPTModel with bf16 parameters that nobody has initialised: load all of them."""
    check_grid_fits(arch, recipe)
    if backend == "te":
        from mx_megatron import te

        config = transformer_config(arch, **te.config_fields(recipe, num_layers=arch.num_layers))
        provider: Any = te.provider()
    else:
        config, provider = transformer_config(arch), EmulatedSpecProvider()
    refuse_silent_bf16(config, backend=backend)
    with expected_warnings():
        model = GPTModel(
            config=config,
            transformer_layer_spec=block_spec(config, provider=provider),
            vocab_size=arch.vocab_size,
            max_sequence_length=arch.max_positions,
            share_embeddings_and_output_weights=arch.tied_embeddings,
            position_embedding_type="rope",
            rotary_base=arch.rope_theta,
        )
    return model.bfloat16()


def _spans(layers: frozenset[int]) -> str:
    ordered = sorted(layers)
    if ordered == list(range(ordered[0], ordered[-1] + 1)):
        return str(ordered[0]) if len(ordered) == 1 else f"{ordered[0]} to {ordered[-1]}"
    return ", ".join(map(str, ordered))
