"""What is refused before an engine starts."""

from __future__ import annotations

import json
from pathlib import Path

import models
import pytest

from mx_vllm import Checkpoint, UnsupportedCheckpoint
from mx_vllm.checkpoint import ignored_modules


def made(path: Path, *, precision: str, **changes: object) -> Path:
    cfg = models.config("llama", tied=True, **changes)
    tensors = models.weights(cfg, seed=1)
    return models.write(
        path, cfg, models.on_grid(tensors) if precision == "mxfp8" else dict(tensors)
    )


def test_a_checkpoint_tells_its_own_layer_set(tmp_path: Path) -> None:
    found = Checkpoint.read(made(tmp_path / "a", precision="mxfp8"), precision="mxfp8")
    assert len(found.on_grid) == 14
    assert found.ignored == {"lm_head", "model.embed_tokens"}
    assert found.tied


@pytest.mark.parametrize("precision", ["bf16", "mxfp8"])
def test_a_path_that_does_not_exist_is_refused(tmp_path: Path, precision: str) -> None:
    with pytest.raises(UnsupportedCheckpoint, match="is not a directory"):
        Checkpoint.read(tmp_path / "nowhere", precision=precision)


def test_a_directory_without_weights_is_refused(tmp_path: Path) -> None:
    made(tmp_path / "a", precision="bf16")
    (tmp_path / "a" / "model.safetensors").unlink()
    with pytest.raises(UnsupportedCheckpoint, match=r"no \*\.safetensors"):
        Checkpoint.read(tmp_path / "a", precision="bf16")


def test_an_unknown_architecture_is_refused_with_what_is_known(tmp_path: Path) -> None:
    path = made(tmp_path / "a", precision="bf16", architectures=["GPT2LMHeadModel"])
    with pytest.raises(UnsupportedCheckpoint, match="GPT2LMHeadModel.*LlamaForCausalLM"):
        Checkpoint.read(path, precision="bf16")


def test_a_bf16_checkpoint_is_refused_as_mxfp8(tmp_path: Path) -> None:
    path = made(tmp_path / "a", precision="bf16")
    with pytest.raises(UnsupportedCheckpoint, match="quantized once, by the learner"):
        Checkpoint.read(path, precision="mxfp8")


def test_an_mxfp8_checkpoint_is_refused_as_bf16(tmp_path: Path) -> None:
    path = made(tmp_path / "a", precision="mxfp8")
    with pytest.raises(UnsupportedCheckpoint, match="14 modules with scales"):
        Checkpoint.read(path, precision="bf16")


def test_an_unknown_precision_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="bf16, mxfp8"):
        Checkpoint.read(tmp_path, precision="fp8")


def test_a_module_that_is_stored_on_the_grid_and_ignored_is_refused(tmp_path: Path) -> None:
    path = made(tmp_path / "a", precision="mxfp8")
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"]["ignore"].append("model.layers.0.mlp.down_proj")
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedCheckpoint, match="down_proj: stored on the grid and listed"):
        Checkpoint.read(path, precision="mxfp8")


@pytest.mark.parametrize("pattern", ["*.mlp.gate", "model.layers.[01].mlp"])
def test_patterns_in_the_ignore_list_are_refused(pattern: str) -> None:
    quantization = {"quant_method": "modelopt", "quant_algo": "MXFP8", "ignore": [pattern]}
    with pytest.raises(UnsupportedCheckpoint, match="full module names"):
        ignored_modules(quantization)


@pytest.mark.parametrize(
    "quantization",
    [
        {"quant_method": "fp8"},
        {"quant_method": "modelopt", "quant_algo": "NVFP4"},
        {"quant_method": "modelopt", "quant_algo": "MXFP8", "kv_cache_quant_algo": "FP8"},
    ],
)
def test_other_quantizations_are_refused(quantization: dict[str, object]) -> None:
    with pytest.raises(UnsupportedCheckpoint):
        ignored_modules(quantization)
