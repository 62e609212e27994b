from typing import Any

import pytest
import torch
from tiny import tiny_config

from mx_megatron import compat
from mx_megatron.architecture import parse_architecture
from mx_megatron.model import transformer_config
from mx_megatron.world import World

ARCH = parse_architecture(tiny_config(), where="test")


def test_the_installed_megatron_core_is_the_version_the_learner_is_written_for() -> None:
    assert compat.require_megatron() == compat.MEGATRON_VERSION


def test_fp8_fields_that_would_silently_train_in_bf16_are_refused() -> None:
    config = transformer_config(ARCH)
    compat.refuse_silent_bf16(config, backend="emulation")
    for changes in ({"fp8": "e4m3", "fp8_recipe": "mxfp8"}, {"fp8_param": True}, {"fp4": "e2m1"}):
        for name, value in changes.items():
            setattr(config, name, value)
        with pytest.raises(ValueError, match=r"plain bf16.*precision='mxfp8'"):
            compat.refuse_silent_bf16(config, backend="emulation")
        compat.refuse_silent_bf16(config, backend="te")
        config = transformer_config(ARCH)


@pytest.mark.skipif(torch.cuda.is_available(), reason="says why there is no CUDA")
def test_without_a_gpu_the_emulation_is_chosen_and_says_why() -> None:
    backend, reason = compat.choose_backend()
    assert backend == "emulation"
    assert "not installed" in reason or "no CUDA" in reason


def test_another_version_of_megatron_core_is_refused(monkeypatch: Any) -> None:
    monkeypatch.setattr(compat, "MEGATRON_VERSION", "9.9.9")
    with pytest.raises(ImportError, match=r"Install megatron-core==9\.9\.9"):
        compat.require_megatron()


def test_a_foreign_process_group_is_refused() -> None:
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    try:
        with pytest.raises(RuntimeError, match="not by the learner"):
            World.enter()
    finally:
        torch.distributed.destroy_process_group()
