"""Make ``.tools/`` (a virtual environment with the pinned nox and uv) and hand over to nox.

uv does not read pip's configuration. Where pip is told of folders with wheels (``find-links``),
uv is told of the same, so that ``torch`` may come from there.
"""

import ast
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REQUIREMENTS = ROOT / "tools" / "requirements.txt"


def main(arguments: list[str]) -> None:
    """Prepare the environment if need be, then become nox with ``arguments``."""
    folder = ROOT / ".tools"
    folder.mkdir(exist_ok=True)
    with _lock(folder / "lock"):
        python = prepare(folder / "venv", requirements=REQUIREMENTS)
    environment = uv_environment(os.environ, pip_config=pip_config(python), fallback_cache=folder)
    environment["PATH"] = f"{python.parent}{os.pathsep}{environment.get('PATH', os.defpath)}"
    command = [str(python), "-m", "nox", "--noxfile", str(ROOT / "noxfile.py"), *arguments]
    sys.stdout.flush()
    os.execve(command[0], command, environment)


def prepare(folder: Path, *, requirements: Path) -> Path:
    """A virtual environment that holds ``requirements`` exactly; returns its python.

    It is made anew when the requirements or the running Python change, or when an earlier attempt
    did not finish.
    """
    python = folder / "bin" / "python"
    stamp = folder / "stamp"
    wanted = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()
    if python.exists() and stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted:
        return python
    print(f"tools/nox: preparing {folder}", file=sys.stderr)
    if folder.exists():
        shutil.rmtree(folder)
    try:
        venv.create(folder, with_pip=True, symlinks=True)
    except subprocess.CalledProcessError as error:
        sys.exit(
            f"tools/nox: {sys.executable} cannot make a virtual environment ({error}).\n"
            "On Debian and Ubuntu install python3-venv."
        )
    install = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    done = subprocess.run(
        [*install, "--require-hashes", "-r", str(requirements)], stdout=sys.stderr, check=False
    )
    if done.returncode != 0:
        sys.exit(f"tools/nox: pip could not install {requirements}; see its message above")
    stamp.write_text(wanted, encoding="utf-8")
    return python


def pip_config(python: Path) -> str:
    """What ``pip config list`` says: files of every level and ``PIP_`` variables."""
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "config", "list"]
    return subprocess.run(command, text=True, capture_output=True, check=True).stdout


def find_links(pip_config: str) -> list[str]:
    """The ``find-links`` locations in the output of ``pip config list``, each once, in order."""
    found: dict[str, None] = {}
    for line in pip_config.splitlines():
        name, separator, value = line.partition("=")
        if separator and name.rpartition(".")[2] == "find-links":
            found.update(dict.fromkeys(str(ast.literal_eval(value)).split()))
    return list(found)


def uv_environment(
    environment: Mapping[str, str], *, pip_config: str, fallback_cache: Path
) -> dict[str, str]:
    """A copy of ``environment`` in which uv finds the wheels that pip finds.

    Local folders that do not exist are left out: pip skips them and uv stops. A home that cannot
    be written gets its uv cache under ``fallback_cache``.
    """
    result = dict(environment)
    links = [link for link in find_links(pip_config) if "://" in link or Path(link).exists()]
    known = [link for link in environment.get("UV_FIND_LINKS", "").split(",") if link]
    if merged := list(dict.fromkeys([*known, *links])):
        result["UV_FIND_LINKS"] = ",".join(merged)
    result.setdefault("UV_HTTP_TIMEOUT", "180")
    own_cache = "UV_CACHE_DIR" in environment or "XDG_CACHE_HOME" in environment
    home = environment.get("HOME", "")
    if not own_cache and not (home and os.access(home, os.W_OK)):
        result["UV_CACHE_DIR"] = str(fallback_cache / "uv-cache")
    return result


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Let one process at a time prepare the environment."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
