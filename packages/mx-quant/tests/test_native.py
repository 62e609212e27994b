"""The compiled kernels: levels, threads, fork, floating-point environment, missing compiler."""

import importlib.util
import os
import select
import shutil
import signal
import subprocess
import sys
import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from mx_quant_testdata import mixed

from mx_quant import native, reference
from mx_quant.grids import MXFP8
from mx_quant.linear import LinearWeights, linear_forward
from mx_quant.quantize import quantize
from mx_quant.report import compare

PACKAGE = Path(__file__).parents[1]
pytestmark = pytest.mark.usefixtures("needs_native")


def test_every_level_that_this_cpu_supports_gives_the_same_bytes() -> None:
    w, x = mixed(64, 96, torch.bfloat16, kind="heavy"), mixed(7, 96, torch.bfloat16, kind="gauss")
    results = []
    base = native._open("base")
    for level in native._LEVELS[: base.mx_cpu_level() + 1]:
        if not (native.directory() / f"libmxquant-{level}.so").exists():
            continue
        lib = native._open(level)
        t = native.empty((64, 96), grid=MXFP8, axis=-1)
        lib.mx_quantize(
            w.data_ptr(), 0, 64, 96, 0, 0, t.elements.data_ptr(), t.scales.data_ptr(), None, None, 1
        )
        packed = torch.empty(lib.mx_packed_bytes(64, 96, 1), dtype=torch.uint8)
        lib.mx_pack_codes(
            t.elements.data_ptr(), t.scales.data_ptr(), 64, 96, 0, 0, packed.data_ptr(), 1
        )
        y = torch.empty(7, 64)
        assert not lib.mx_linear(
            x.data_ptr(), 0, 7, 96, 0, 0, packed.data_ptr(), 1, 64, y.data_ptr(), 2, 1
        )
        results.append((level, t, y))
    for level, t, y in results:
        assert compare(t, reference.quantize(w, grid=MXFP8)).same_bytes, level
        assert torch.equal(y, results[0][2]), level


def test_flushing_denormals_in_the_calling_thread_changes_nothing() -> None:
    x = mixed(64, 64, torch.float32, kind="subnormal")
    expected = reference.quantize(x, grid=MXFP8)
    supported = torch.set_flush_denormal(True)
    try:
        got = quantize(x, grid=MXFP8)
    finally:
        torch.set_flush_denormal(False)
    assert supported
    assert compare(got, expected).same_bytes


def test_many_python_threads_may_call_at_once(threads: Callable[[int], None]) -> None:
    threads(2)
    weights = LinearWeights.quantize(mixed(192, 96, torch.bfloat16, kind="gauss"), grid=MXFP8)
    x = mixed(300, 96, torch.bfloat16, kind="gauss", seed=1)
    expected = linear_forward(x, weights.forward, grid=MXFP8)
    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(linear_forward, x, weights.forward, grid=MXFP8) for _ in range(24)]
        assert all(torch.equal(call.result(), expected) for call in calls)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_has_working_threads(threads: Callable[[int], None]) -> None:
    threads(2)
    x = mixed(4096, 64, torch.bfloat16, kind="gauss")
    expected = quantize(x, grid=MXFP8).element_bytes.numpy().tobytes()
    out = native.empty((4096, 64), grid=MXFP8, axis=-1)
    codes = out.element_bytes.numpy()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # nothing of torch: its own threads do not survive a fork
        native.quantize_into(x, out, None)
        os.write(writer, b"same" if codes.tobytes() == expected else b"else")
        os._exit(0)
    os.close(writer)
    finished, _, _ = select.select([reader], [], [], 60)
    if not finished:
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert finished, "the child hangs"
    assert os.read(reader, 4) == b"same"
    os.close(reader)


def _hook(monkeypatch: pytest.MonkeyPatch) -> Any:
    names = ("hatchling", "builders", "hooks", "plugin", "interface")
    for end in range(1, len(names) + 1):
        module = types.ModuleType(".".join(names[:end]))
        module.BuildHookInterface = object  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
    spec = importlib.util.spec_from_file_location("hatch_build", PACKAGE / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    return hook


def test_a_build_without_a_compiler_removes_stale_kernels_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    (tmp_path / "libmxquant-base.so").touch()
    assert _hook(monkeypatch).build(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_a_compiler_that_fails_leaves_the_level_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CC", "false")
    assert _hook(monkeypatch).build(tmp_path) == []
    assert "level base not built" in capfd.readouterr().err


def test_without_kernels_the_package_works_and_says_why(tmp_path: Path) -> None:
    copy = tmp_path / "mx_quant"
    shutil.copytree(PACKAGE / "src" / "mx_quant", copy, ignore=shutil.ignore_patterns("*.so"))
    script = (
        "import mx_quant, torch; from mx_quant.gemm import selected;"
        "w = torch.randn(64, 64).bfloat16();"
        "lw = mx_quant.LinearWeights.quantize(w, grid=mx_quant.MXFP8);"
        "y = mx_quant.linear_forward(w, lw.forward, grid=mx_quant.MXFP8);"
        "print(mx_quant.backend()); print(selected()); print(tuple(y.shape))"
    )
    result = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {script}"],
        capture_output=True,
        text=True,
        check=True,
    )
    first, second, third = result.stdout.splitlines()
    assert first.startswith("eager (PyTorch operators); not native: kernels not built")
    assert second.startswith("torch-")
    assert third == "(64, 64)"
