import subprocess
import sys
from pathlib import Path

import pytest

import bootstrap

ROOT = Path(__file__).resolve().parents[2]


def test_find_links_are_read_from_every_level_once():
    config = (
        ":env:.find-links='/wheels https://example.org/w'\n"
        "global.extra-index-url='https://example.org/simple'\n"
        "global.find-links='\\n/wheels\\n/more'\n"
        "install.find-links='/last'\n"
        "global.timeout='60'\n"
    )
    expected = ["/wheels", "https://example.org/w", "/more", "/last"]
    assert bootstrap.find_links(config) == expected


def test_uv_is_told_of_folders_that_exist_and_of_addresses(tmp_path):
    config = f"global.find-links='{tmp_path} {tmp_path}/none https://example.org/w'\n"
    result = bootstrap.uv_environment(
        {"HOME": str(tmp_path)}, pip_config=config, fallback_cache=tmp_path
    )
    assert result["UV_FIND_LINKS"] == f"{tmp_path},https://example.org/w"
    assert "UV_CACHE_DIR" not in result


def test_what_uv_knows_already_comes_first(tmp_path):
    result = bootstrap.uv_environment(
        {"HOME": str(tmp_path), "UV_FIND_LINKS": "/own"},
        pip_config=f"global.find-links='{tmp_path}'\n",
        fallback_cache=tmp_path,
    )
    assert result["UV_FIND_LINKS"] == f"/own,{tmp_path}"


def test_nothing_is_set_where_pip_has_no_find_links(tmp_path):
    environment = {"HOME": str(tmp_path)}
    result = bootstrap.uv_environment(environment, pip_config="", fallback_cache=tmp_path)
    assert "UV_FIND_LINKS" not in result


@pytest.mark.parametrize("environment", [{}, {"HOME": "/nonexistent"}])
def test_a_home_that_cannot_be_written_gets_its_cache_in_the_repository(environment, tmp_path):
    result = bootstrap.uv_environment(environment, pip_config="", fallback_cache=tmp_path)
    assert result["UV_CACHE_DIR"] == str(tmp_path / "uv-cache")


def test_an_environment_is_made_once_and_again_after_the_requirements_change(tmp_path):
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("# nothing\n")
    python = bootstrap.prepare(tmp_path / "venv", requirements=requirements)
    assert subprocess.run([python, "-c", ""], check=True).returncode == 0
    marker = tmp_path / "venv" / "marker"
    marker.touch()
    bootstrap.prepare(tmp_path / "venv", requirements=requirements)
    assert marker.exists()
    requirements.write_text("# nothing more\n")
    bootstrap.prepare(tmp_path / "venv", requirements=requirements)
    assert not marker.exists()


def test_an_old_python_is_told_what_is_needed(tmp_path):
    """Run the launcher as an old Python would see it."""
    code = (
        "import sys; sys.version_info = (3, 8, 1); sys.argv = ['nox', '-s', 'tests'];"
        f"exec(compile(open({str(ROOT / 'tools' / 'nox')!r}).read(), 'nox', 'exec'))"
    )
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=False)
    assert done.returncode == 1
    assert "Python >= 3.11 is needed, this is 3.8" in done.stderr
