import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from test_learner import flat, reference
from tiny import random_sequences, reinforce, tiny_config, write_checkpoint

import mx_quant
from mx_quant import MXTensor
from mx_sync.manifest import Manifest

TIED = tiny_config("LlamaForCausalLM", tie_word_embeddings=True)


def trained(learner_of: Any, config: dict[str, Any], **settings: Any) -> Any:
    learner = learner_of(config, learning_rate=1e-3, **settings)
    sequences = random_sequences(8)
    learner.step(sequences, reinforce(sequences), temperature=1.0, micro_batch_tokens=64)
    return learner


@pytest.mark.parametrize("config", [tiny_config(), TIED], ids=["qwen3", "llama-tied"])
def test_an_exported_checkpoint_gives_transformers_the_learner_s_log_probs(
    learner_of: Any, tmp_path: Path, config: dict[str, Any]
) -> None:
    learner = trained(learner_of, config, precision="bf16")
    learner.export(tmp_path / "hf", format="hf")
    sequences = random_sequences(12, seed=5)
    ours = flat(learner.log_probs(sequences, temperature=1.0, micro_batch_tokens=128))
    exact, theirs = (
        reference(tmp_path / "hf", sequences, dtype=dtype, temperature=1.0)
        for dtype in (torch.float32, torch.bfloat16)
    )
    started = reference(learner._path, sequences, dtype=torch.float32, temperature=1.0)
    noise = float((theirs - exact).abs().mean())
    assert float((ours - exact).abs().mean()) < 2 * noise
    # The step moved the model by more than the noise, so the agreement is about the new weights.
    assert float((started - exact).abs().mean()) > 2 * noise


def test_an_exported_checkpoint_starts_a_learner_on_the_same_bytes(
    learner_of: Any, tmp_path: Path
) -> None:
    learner = trained(learner_of, tiny_config())
    learner.export(tmp_path / "hf", format="hf")
    again = learner_of(path=tmp_path / "hf").source().manifest()
    assert again.tensors == learner.source().manifest().tensors


def test_a_serialized_mxfp8_checkpoint_holds_the_forward_bytes(
    learner_of: Any, tmp_path: Path
) -> None:
    learner = trained(learner_of, tiny_config(), layers="skip:1,0")
    learner.export(tmp_path / "mx", format="mxfp8")
    tensors = load_file(tmp_path / "mx" / "model.safetensors")
    manifest = Manifest.decode((tmp_path / "mx" / "mx_manifest.json").read_bytes())
    assert manifest == learner.source().manifest()
    for spec in manifest.tensors:
        tensor: Any = tensors.pop(spec.name)
        if spec.grid is not None:
            scales = tensors.pop(spec.name + "_scale")
            assert scales.dtype == torch.uint8
            tensor = MXTensor(tensor, scales, spec.grid)
        assert mx_quant.digest(tensor) == spec.digest
    assert tensors == {}


def test_the_quantization_config_excludes_exactly_the_modules_off_the_grid(
    learner_of: Any, tmp_path: Path
) -> None:
    learner_of(TIED, layers="skip:1,0").export(tmp_path / "mx", format="mxfp8")
    config = json.loads((tmp_path / "mx" / "config.json").read_text())["quantization_config"]
    layer = "model.layers.0."
    attention = [layer + f"self_attn.{x}_proj" for x in "qkvo"]
    mlp = [layer + f"mlp.{x}_proj" for x in ("gate", "up", "down")]
    assert config["exclude_modules"] == config["ignore"]
    assert config["exclude_modules"] == ["model.embed_tokens", *attention, *mlp, "lm_head"]
    assert (config["quant_method"], config["quant_algo"]) == ("modelopt", "MXFP8")
    assert config["kv_cache_quant_algo"] is None


def test_a_bf16_learner_exports_mxfp8_quantized_once(learner_of: Any, tmp_path: Path) -> None:
    plain, live = learner_of(precision="bf16"), learner_of()
    plain.export(tmp_path / "a", format="mxfp8")
    live.export(tmp_path / "b", format="mxfp8")
    files = [(tmp_path / x / "model.safetensors").read_bytes() for x in "ab"]
    assert files[0] == files[1]


def test_tokenizer_files_come_along_and_old_weights_do_not(learner_of: Any, tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "model", tiny_config(), shards=2)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        (path / name).write_text("{}")
    (path / "chat_template.jinja").write_text("x")
    learner_of(path=path).export(tmp_path / "hf", format="hf")
    assert sorted(file.name for file in (tmp_path / "hf").iterdir()) == [
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "mx_manifest.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["dtype"] == "bfloat16"
    assert "quantization_config" not in config
    with safe_open(tmp_path / "hf" / "model.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_an_unknown_format_is_refused_with_the_known_ones(learner_of: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected one of hf, mxfp8"):
        learner_of().export(tmp_path / "x", format="gguf")
    assert not (tmp_path / "x").exists()
