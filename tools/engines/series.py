"""``patches/<engine>/series.toml``: the pinned wheels of an engine and what each patch is for."""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines.errors import EngineError

_CLAUSE = re.compile(r"(>=|<=|==|<|>)\s*(\d+(?:\.\d+)*)$")


@dataclass(frozen=True, slots=True)
class WheelPin:
    """One wheel that upstream published, for one Python and one kind of machine."""

    python: str
    machine: str
    filename: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Patch:
    """One concern, in ``git format-patch`` form."""

    path: Path
    reason: str
    upstream: str
    versions: str
    remove_when: str

    @property
    def name(self) -> str:
        """The file's name, by which errors and provenance call the patch."""
        return self.path.name


@dataclass(frozen=True, slots=True)
class Series:
    """What is known of one engine; ``patches`` may be empty, and then ``reason`` says why."""

    engine: str
    version: str
    local: str
    base: str
    requires_python: str
    include: tuple[str, ...]
    reason: str
    wheels: tuple[WheelPin, ...]
    patches: tuple[Patch, ...]
    path: Path

    def pin(self, *, python: str, machine: str) -> WheelPin:
        """The wheel for one Python ("3.11") and machine ("x86_64").

        Raises EngineError naming what is pinned when there is none.
        """
        for pin in self.wheels:
            if (pin.python, pin.machine) == (python, machine):
                return pin
        known = ", ".join(f"Python {p.python} on {p.machine}" for p in self.wheels) or "none"
        raise EngineError(
            f"{self.engine} {self.version}: no wheel is pinned for Python {python} on {machine}; "
            f"pinned: {known}. Use one of these, or add a [[wheel]] to {self.path}"
        )


def admits(versions: str, version: str) -> bool:
    """Whether a range such as ``">=0.19,<0.20"`` holds a version such as ``"0.19.2"``."""
    have = _key(version)
    for clause in versions.split(","):
        match = _CLAUSE.match(clause.strip())
        if match is None:
            raise EngineError(f"version range {versions!r}: cannot read the clause {clause!r}")
        want = _key(match[2])
        width = max(len(have), len(want))
        a, b = (k + (0,) * (width - len(k)) for k in (have, want))
        holds = {">=": a >= b, "<=": a <= b, "==": a == b, "<": a < b, ">": a > b}
        if not holds[match[1]]:
            return False
    return True


def _key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def engines(root: Path) -> list[str]:
    """The engines that have a folder under ``patches/``."""
    return sorted(p.parent.name for p in (root / "patches").glob("*/series.toml"))


def load(root: Path, *, engine: str) -> Series:
    """Read and check one series.

    Raises EngineError when the engine is unknown, a field is missing, a patch is listed and not
    there or there and not listed, or a patch does not declare itself for the pinned version.
    """
    folder = root / "patches" / engine
    path = folder / "series.toml"
    if not path.is_file():
        raise EngineError(f"engine {engine!r} is unknown; known: {', '.join(engines(root))}")
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    patches = tuple(_patch(folder, entry, path) for entry in data.get("patch", []))
    series = Series(
        engine=_field(data, "engine", path),
        version=_field(data, "version", path),
        local=data.get("local", ""),
        base=data.get("base", ""),
        requires_python=data.get("requires-python", ""),
        include=tuple(data.get("include", [])),
        reason=data.get("reason", ""),
        wheels=tuple(_wheel(entry, path) for entry in data.get("wheel", [])),
        patches=patches,
        path=path,
    )
    _validate(series, folder)
    return series


def _validate(series: Series, folder: Path) -> None:
    problems = []
    listed = [p.name for p in series.patches]
    present = sorted(p.name for p in folder.glob("*.patch"))
    problems += [f"{n} is listed and not there" for n in listed if n not in present]
    problems += [f"{n} is there and not listed" for n in present if n not in listed]
    if listed != sorted(listed):
        problems.append("patches are not listed in the order of their numbers")
    for patch in series.patches:
        if not admits(patch.versions, series.version):
            problems.append(f"{patch.name} is for {patch.versions}, the pin is {series.version}")
    if not series.patches and not series.reason:
        problems.append("an empty series must say why in 'reason'")
    if series.patches and not (series.wheels and series.local and series.include):
        problems.append("a series with patches needs 'local', 'include' and a [[wheel]]")
    if problems:
        raise EngineError(f"{series.path}: " + "; ".join(problems))


def _field(data: dict[str, Any], name: str, path: Path) -> str:
    value = data.get(name)
    if not isinstance(value, str) or not value:
        raise EngineError(f"{path}: the field {name!r} is missing or no text")
    return value


def _patch(folder: Path, entry: dict[str, Any], path: Path) -> Patch:
    return Patch(
        path=folder / _field(entry, "file", path),
        reason=_field(entry, "reason", path),
        upstream=_field(entry, "upstream", path),
        versions=_field(entry, "versions", path),
        remove_when=_field(entry, "remove-when", path),
    )


def _wheel(entry: dict[str, Any], path: Path) -> WheelPin:
    return WheelPin(
        python=_field(entry, "python", path),
        machine=_field(entry, "machine", path),
        filename=_field(entry, "filename", path),
        sha256=_field(entry, "sha256", path),
    )
