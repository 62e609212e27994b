"""Pinned wheel + patches -> patched wheel, reused as long as its inputs do not change."""

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from engines import patching, wheelfile
from engines.errors import EngineError
from engines.series import Series, WheelPin


def this_python() -> str:
    """The running interpreter's version as a pin names it, such as ``"3.11"``."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def this_machine() -> str:
    """The running machine as a pin names it, such as ``"x86_64"``."""
    return platform.machine()


def epoch() -> int:
    """SOURCE_DATE_EPOCH, or the earliest date that a zip file holds."""
    return int(os.environ.get("SOURCE_DATE_EPOCH", wheelfile.DEFAULT_EPOCH))


def build(series: Series, *, pin: WheelPin, out: Path, source: Path | None = None) -> Path:
    """Build the patched wheel in ``out`` and return its path; one that is up to date is kept.

    ``source`` is a local copy of the pinned wheel; without it pip downloads one.
    Raises EngineError for a series without patches, a wrong hash, or a patch that does not land.
    """
    if not series.patches:
        raise EngineError(
            f"{series.engine}: nothing to build, the series is empty ({series.reason}); "
            f"install {series.engine}=={series.version} as it is published"
        )
    out.mkdir(parents=True, exist_ok=True)
    name = pin.filename.replace(f"-{series.version}-", f"-{series.version}+{series.local}-", 1)
    wheel = out / name
    state = out / f"{name}.json"
    key = _key(series, pin)
    if _up_to_date(wheel, state=state, key=key):
        return wheel
    source = fetch(series, pin=pin, downloads=out / "downloads", source=source)
    with tempfile.TemporaryDirectory(prefix="mx-engine-") as folder:
        tree = Path(folder).resolve() / "wheel"
        wheelfile.unpack(source, into=tree)
        landed = apply_all(series, tree=tree)
        info = wheelfile.relabel(
            tree,
            version=series.version,
            local=series.local,
            requires_python=series.requires_python,
        )
        _write_provenance(info, series=series, pin=pin, landed=landed)
        wheelfile.pack(tree, wheel=wheel, epoch=epoch())
    state.write_text(json.dumps({"key": key, "sha256": wheelfile.sha256(wheel)}), encoding="utf-8")
    return wheel


def apply_all(series: Series, *, tree: Path) -> dict[str, int]:
    """Apply every patch in order; returns how many hunks of each landed."""
    return {
        patch.name: len(patching.apply(patch.path, root=tree, include=series.include))
        for patch in series.patches
    }


def fetch(series: Series, *, pin: WheelPin, downloads: Path, source: Path | None = None) -> Path:
    """The pinned wheel, from ``source``, an earlier download, or pip; its hash is checked."""
    if source is None:
        source = downloads / pin.filename
        if not source.is_file():
            _download(series, pin=pin, downloads=downloads)
        if not source.is_file():
            found = sorted(p.name for p in downloads.iterdir())
            raise EngineError(
                f"{series.engine}: pip did not download {pin.filename}, but {found}; "
                f"mend the pin in {series.path}"
            )
    found = wheelfile.sha256(source)
    if found != pin.sha256:
        raise EngineError(
            f"{series.engine}: {source} has sha256 {found}, pinned is {pin.sha256}; delete the "
            f"file if the download was cut short, else do not trust it"
        )
    return source


def _download(series: Series, *, pin: WheelPin, downloads: Path) -> None:
    downloads.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
    command += ["--no-deps", "--only-binary=:all:", "--ignore-requires-python"]
    command += ["--python-version", pin.python, "--dest", str(downloads)]
    command += [f"--platform={tag}" for tag in pin.filename[:-4].split("-")[-1].split(".")]
    done = subprocess.run(
        [*command, f"{series.engine}=={series.version}"],
        text=True,
        capture_output=True,
        check=False,
    )
    if done.returncode != 0:
        raise EngineError(
            f"{series.engine}: pip could not download {pin.filename}: {done.stderr.strip()}"
        )


def _key(series: Series, pin: WheelPin) -> str:
    """Digest of everything that the built wheel depends on, this code included."""
    digest = hashlib.sha256()
    own = sorted(Path(__file__).parent.glob("*.py"))
    for path in (series.path, *(p.path for p in series.patches), *own):
        digest.update(f"{path.name}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    digest.update(f"{pin.sha256}\0{epoch()}".encode())
    return digest.hexdigest()


def _up_to_date(wheel: Path, *, state: Path, key: str) -> bool:
    if not (wheel.is_file() and state.is_file()):
        return False
    return bool(
        json.loads(state.read_text(encoding="utf-8"))
        == {"key": key, "sha256": wheelfile.sha256(wheel)}
    )


def _write_provenance(info: Path, *, series: Series, pin: WheelPin, landed: dict[str, int]) -> None:
    """Say inside the wheel what it was made from, and carry the patches themselves."""
    folder = info / "patches"
    folder.mkdir()
    patches = []
    for patch in series.patches:
        shutil.copyfile(patch.path, folder / patch.name)
        patches.append(
            {
                "file": patch.name,
                "sha256": wheelfile.sha256(patch.path),
                "hunks": landed[patch.name],
                "reason": patch.reason,
                "upstream": patch.upstream,
            }
        )
    provenance = {
        "engine": series.engine,
        "version": series.version,
        "local": series.local,
        "base": series.base,
        "source": {"filename": pin.filename, "sha256": pin.sha256},
        "patches": patches,
    }
    (info / "provenance.json").write_text(json.dumps(provenance, indent=2) + "\n", encoding="utf-8")
