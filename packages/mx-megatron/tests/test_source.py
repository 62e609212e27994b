from typing import Any

import pytest
import torch
from tiny import random_sequences, reinforce, tiny_config, tiny_tensors

import mx_quant
from mx_quant import MXTensor

TIED = tiny_config("LlamaForCausalLM", tie_word_embeddings=True)


def test_names_shapes_and_order_are_those_of_the_hugging_face_checkpoint(learner_of: Any) -> None:
    config = tiny_config()
    manifest = learner_of(config).source().manifest()
    expected = tiny_tensors(config)
    assert list(manifest.names) == list(expected)
    assert [s.shape for s in manifest.tensors] == [tuple(t.shape) for t in expected.values()]


def test_bf16_tensors_are_the_checkpoint_s_own_values(learner_of: Any) -> None:
    config = tiny_config()
    source = learner_of(config).source(precision="bf16")
    for name, expected in tiny_tensors(config).items():
        tensor = source.tensor(name)
        assert isinstance(tensor, torch.Tensor)
        assert torch.equal(tensor, expected), name


def test_tensors_on_the_grid_are_the_checkpoint_s_values_quantized_once(learner_of: Any) -> None:
    config = tiny_config()
    source = learner_of(config).source()
    for name, expected in tiny_tensors(config).items():
        tensor = source.tensor(name)
        assert isinstance(tensor, MXTensor) == name.endswith("_proj.weight")
        if isinstance(tensor, MXTensor):
            fresh = mx_quant.quantize(expected, grid=mx_quant.MXFP8)
            assert mx_quant.digest(tensor) == mx_quant.digest(fresh), name
            assert tensor.elements.is_contiguous()
            assert tensor.scales.is_contiguous()


def test_a_tied_output_layer_is_an_alias_without_bytes(learner_of: Any) -> None:
    source = learner_of(TIED).source()
    manifest = source.manifest()
    assert manifest.aliases == (("lm_head.weight", "model.embed_tokens.weight"),)
    assert "lm_head.weight" not in manifest.names
    assert source.tensor("lm_head.weight") is source.tensor("model.embed_tokens.weight")


def test_an_mxfp8_learner_and_an_mxfp8_export_of_a_bf16_learner_agree(learner_of: Any) -> None:
    live = learner_of(layers="skip:1,0").source().manifest()
    exported = learner_of(precision="bf16", layers="skip:1,0").source(precision="mxfp8").manifest()
    assert live == exported


def test_a_source_refuses_to_mix_two_versions(learner_of: Any) -> None:
    learner = learner_of()
    source = learner.source()
    source.manifest()
    sequences = random_sequences(2)
    learner.step(sequences, reinforce(sequences), temperature=1.0, micro_batch_tokens=64)
    with pytest.raises(RuntimeError, match="of version test@0, the learner is at test@1"):
        source.tensor("model.norm.weight")


def test_gate_and_up_are_views_of_the_bytes_that_the_gemm_reads(learner_of: Any) -> None:
    learner = learner_of()
    name = "model.layers.0.mlp.up_proj.weight"
    live = learner._weights.module("decoder.layers.0.mlp.linear_fc1").prepared.rowwise
    exported = learner.source().tensor(name)
    assert exported.elements.data_ptr() == live.elements[256:].data_ptr()


def test_an_unknown_name_is_refused_with_the_version(learner_of: Any) -> None:
    with pytest.raises(KeyError, match="test@0"):
        learner_of().source().tensor("model.layers.9.self_attn.q_proj.weight")
