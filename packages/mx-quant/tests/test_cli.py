import json

import pytest

from mx_quant import bench, cli, native
from mx_quant.quantize import backend


def test_doctor_reports_what_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["backend"] == backend()
    assert {"instruction_set", "compiler", "gemm", "compute_dtype", "torch", "advice"} <= set(
        report
    )
    assert cli.main(["doctor"]) == 0
    assert "backend" in capsys.readouterr().out


def test_doctor_advises_by_what_is_missing() -> None:
    missing = native.Native(None, "", "not built")
    assert "install a C compiler" in cli._advice(missing, "none found")
    assert "reinstall" in cli._advice(missing, "/usr/bin/cc")


def test_a_command_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main([])
    assert "command" in capsys.readouterr().err


def test_the_benchmark_prints_one_json_line_per_operation(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ["--mebibytes", "1", "--dtype", "bf16", "--threads", "1", "--repeats", "1"]
    assert bench.main([*options, "--no-linear"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {line["op"] for line in lines} == {
        "quantize_rowwise",
        "quantize_columnwise",
        "quantize_both",
        "dequantize",
        "fake_quantize",
        "digest",
    }
    assert all(line["gbps"] > 0 and line["memcpy_gbps"] > 0 for line in lines)


def test_the_benchmark_refuses_to_time_wrong_results() -> None:
    with pytest.raises(SystemExit, match="quantize differs from the reference"):
        bench._check("quantize", False)
