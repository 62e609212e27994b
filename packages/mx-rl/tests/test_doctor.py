from __future__ import annotations

import io

import pytest
from rich.console import Console

from mx_rl import doctor


def rows(monkeypatch: pytest.MonkeyPatch, **changes: object) -> tuple[int, str]:
    for name, value in changes.items():
        monkeypatch.setattr(doctor, name, value)
    out = io.StringIO()
    code = doctor.doctor(Console(file=out, width=300))
    return code, out.getvalue()


def test_too_little_shared_memory_is_a_problem_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code, told = rows(monkeypatch, NEEDED_SHM_BYTES=2**60)
    assert code == 1
    assert "--shm-size" in told


def test_missing_adapters_are_a_problem_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    code, told = rows(monkeypatch, adapters=lambda role: {})
    assert code == 1
    assert "install mx-megatron" in told
    assert "install mx-vllm or mx-sglang" in told


def test_an_adapter_that_does_not_import_is_a_problem_and_hides_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Broken:
        value = "x:Y"

        def load(self) -> None:
            raise ImportError("no engine here")

    code, told = rows(monkeypatch, adapters=lambda role: {"x": Broken()})
    assert code == 1
    assert "ImportError: no engine here" in told
    assert "quantizer" in told


def test_a_check_that_fails_itself_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise OSError("no /proc")

    code, told = rows(monkeypatch, _processor=broken)
    assert code == 1
    assert "OSError: no /proc" in told
