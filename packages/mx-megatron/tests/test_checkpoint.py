from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import tiny_config, tiny_tensors, write_checkpoint


def test_a_sharded_checkpoint_loads_the_same_weights_as_a_single_file(
    learner_of: Any, tmp_path: Path
) -> None:
    config = tiny_config()
    sharded = write_checkpoint(tmp_path / "sharded", config, shards=3)
    a = learner_of(config).source().manifest()
    b = learner_of(config, path=sharded).source().manifest()
    assert a == b


def test_every_fault_of_a_checkpoint_is_reported_at_once(learner_of: Any, tmp_path: Path) -> None:
    config = tiny_config()
    tensors = tiny_tensors(config)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    tensors["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(128)
    tensors["model.norm.weight"] = torch.ones(64)
    tensors["lm_head.weight"] = tensors["lm_head.weight"].to(torch.int8)
    path = write_checkpoint(tmp_path / "bad", config, tensors)
    with pytest.raises(ValueError) as caught:
        learner_of(config, path=path)
    for part in (
        "missing tensor model.layers.1.mlp.up_proj.weight",
        "unexpected tensor model.layers.0.self_attn.q_proj.bias",
        "model.norm.weight has shape (64,), expected (128,)",
        "lm_head.weight has dtype I8",
    ):
        assert part in str(caught.value)


def test_a_missing_shard_is_named(learner_of: Any, tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "sharded", tiny_config(), shards=2)
    (path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="lacks model-00002-of-00002.safetensors"):
        learner_of(path=path)


def test_a_tied_checkpoint_with_another_lm_head_is_refused(learner_of: Any, tmp_path: Path) -> None:
    config = tiny_config(tie_word_embeddings=True)
    tensors = tiny_tensors(config)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + 1
    path = write_checkpoint(tmp_path / "tied", config, tensors)
    with pytest.raises(ValueError, match=r"lm_head.weight differs from model.embed_tokens.weight"):
        learner_of(config, path=path)


def test_fp32_checkpoints_are_rounded_to_bf16(learner_of: Any, tmp_path: Path) -> None:
    config = tiny_config()
    wide = {name: tensor.float() for name, tensor in tiny_tensors(config).items()}
    path = write_checkpoint(tmp_path / "fp32", config, wide)
    assert learner_of(config, path=path).source().manifest() == learner_of().source().manifest()


def test_masters_start_from_the_checkpoint_s_own_precision(learner_of: Any, tmp_path: Path) -> None:
    config = tiny_config()
    wide = {name: tensor.float() * 1.001 for name, tensor in tiny_tensors(config).items()}
    learner = learner_of(config, path=write_checkpoint(tmp_path / "fp32", config, wide))
    parameter = learner._parameters["embedding.word_embeddings.weight"]
    master, _ = learner._optimizer.slot(parameter)
    expected = wide["model.embed_tokens.weight"]
    assert torch.equal(master.view_as(expected), expected)
    assert torch.equal(parameter, expected.to(torch.bfloat16))
