"""The process's environment."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from mx_vllm import prepare_environment


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", os.environ.copy())


def test_threads_are_told_to_the_libraries() -> None:
    assert prepare_environment(threads=3) == 3
    assert os.environ["OMP_NUM_THREADS"] == "3"


def test_without_threads_the_users_setting_stays() -> None:
    os.environ["OMP_NUM_THREADS"] = "5"
    assert prepare_environment(threads=None) == 5


def test_no_threads_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1, found 0"):
        prepare_environment(threads=0)


@pytest.mark.parametrize("name", ["VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_CPU_ATTN_SPLIT_KV"])
def test_settings_that_this_package_cannot_work_with_are_refused(name: str) -> None:
    os.environ[name] = "1"
    with pytest.raises(RuntimeError, match=f"{name}=0, found 1"):
        prepare_environment(threads=1)


def test_the_gpu_batch_invariance_is_refused() -> None:
    os.environ["VLLM_BATCH_INVARIANT"] = "1"
    with pytest.raises(RuntimeError, match="unset it"):
        prepare_environment(threads=1)


def test_importing_the_package_imports_no_vllm_and_sets_no_variable() -> None:
    code = (
        "import os, sys; before = dict(os.environ); import mx_vllm, mx_vllm.plugin; "
        "assert 'vllm' not in sys.modules; assert dict(os.environ) == before"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
