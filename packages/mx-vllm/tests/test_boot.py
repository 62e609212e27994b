"""Boots that must fail, and the decisions that are made while vLLM builds the model."""

from __future__ import annotations

import json
from pathlib import Path

import models
import pytest
import scenarios
from processes import run

pytestmark = [pytest.mark.engine, pytest.mark.slow]

IGNORED = [
    "model.layers.0.mlp.gate",
    "model.layers.1",
    "model.layers.2.self_attn.q_proj",
    "model.layers.3.self_attn.q_proj",
    "model.layers.3.self_attn.k_proj",
    "model.layers.3.self_attn.v_proj",
]


def test_ignored_modules_are_matched_by_full_name_and_whole_fusions_only() -> None:
    swallowed, deeper, part, whole = run(
        scenarios.grids,
        IGNORED,
        [
            "model.layers.0.mlp.gate_up_proj",
            "model.layers.11.mlp.down_proj",
            "model.layers.2.self_attn.qkv_proj",
            "model.layers.3.self_attn.qkv_proj",
        ],
    )
    assert (swallowed, deeper, whole) == ("mxfp8", "mxfp8", "bf16")
    assert "only model.layers.2.self_attn.q_proj are ignored" in part


def test_registering_twice_is_registering_once() -> None:
    assert run(scenarios.registered_twice) == ["MxBf16Config", "MxFp8Config", "True"]


def test_layers_off_the_grid_are_served_in_bf16_when_they_are_listed(tmp_path: Path) -> None:
    path = _mixed(tmp_path, listed=True)
    assert run(scenarios.boots, path, "mxfp8") == "booted"


def test_a_checkpoint_that_does_not_list_its_bf16_layers_is_refused(tmp_path: Path) -> None:
    told = run(scenarios.boots, _mixed(tmp_path, listed=False), "mxfp8")
    assert told.startswith("RuntimeError")
    assert "model.layers.1.mlp.down_proj: on the grid here, not in the checkpoint" in told


def test_a_depth_that_is_no_multiple_of_32_is_refused_by_name(tmp_path: Path) -> None:
    cfg = models.config("llama", tied=True, intermediate_size=200)
    tensors = models.on_grid(models.weights(cfg, seed=1), skip=("down_proj",))
    path = models.write(tmp_path / "a", cfg, tensors)
    _unlist(path, "down_proj")
    told = run(scenarios.boots, path, "mxfp8")
    assert "model.layers.0.mlp.down_proj.weight does not fit grid mxfp8" in told
    assert "32" in told


def _mixed(root: Path, *, listed: bool) -> Path:
    cfg = models.config("llama", tied=False)
    tensors = models.on_grid(models.weights(cfg, seed=1), skip=("layers.1.mlp.down_proj",))
    path = models.write(root / "a", cfg, tensors)
    if not listed:
        _unlist(path, "down_proj")
    return path


def _unlist(path: Path, part: str) -> None:
    config = json.loads((path / "config.json").read_text())
    quantization = config["quantization_config"]
    quantization["ignore"] = [name for name in quantization["ignore"] if part not in name]
    (path / "config.json").write_text(json.dumps(config))
