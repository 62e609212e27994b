import json
from pathlib import Path
from typing import Any

import pytest
from tiny import tiny_config

from mx_megatron.architecture import parse_architecture, read_config


def parse(**changes: Any) -> Any:
    return parse_architecture(tiny_config(**changes), where="config.json")


def test_an_unsupported_architecture_is_refused_with_the_supported_ones() -> None:
    with pytest.raises(ValueError, match="MistralForCausalLM.*LlamaForCausalLM, Qwen3ForCausalLM"):
        parse(architectures=["MistralForCausalLM"])


def test_every_unsupported_setting_is_reported_at_once() -> None:
    with pytest.raises(ValueError, match="(?s)hidden_act='gelu'.*attention_bias=True.*'yarn'"):
        parse(
            hidden_act="gelu",
            attention_bias=True,
            rope_parameters={"rope_type": "yarn", "factor": 4.0},
        )


def test_rope_scaling_in_the_older_spelling_is_refused_too() -> None:
    with pytest.raises(ValueError, match="'llama3'"):
        parse(rope_parameters=None, rope_scaling={"rope_type": "llama3", "factor": 8.0})


def test_rope_theta_is_read_from_either_spelling() -> None:
    new = parse(rope_parameters={"rope_theta": 5e5, "rope_type": "default"})
    old = parse(rope_parameters=None, rope_theta=5e5)
    assert new.rope_theta == old.rope_theta == 5e5


def test_a_missing_size_is_named() -> None:
    with pytest.raises(ValueError, match="intermediate_size=None"):
        parse(intermediate_size=None)


def test_query_heads_must_be_a_multiple_of_key_value_heads() -> None:
    with pytest.raises(ValueError, match="num_attention_heads=4.*num_key_value_heads=3"):
        parse(num_key_value_heads=3)


def test_head_dim_defaults_to_hidden_size_over_heads() -> None:
    assert parse(head_dim=None).head_dim == 32


def test_a_path_that_is_no_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no checkpoint directory at .*nowhere"):
        read_config(tmp_path / "nowhere")


def test_a_directory_without_config_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"holds no config\.json"):
        read_config(tmp_path)


def test_a_config_that_is_not_an_object_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps([1]))
    with pytest.raises(ValueError, match="expected a JSON object"):
        read_config(tmp_path)
