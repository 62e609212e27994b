"""One version: ``VERSION``, every package's static version, and the ``==`` pins between siblings.

``python tools/version_guard.py`` exits with 1 and one line per file that disagrees.
"""

import re
import sys
import tomllib
from pathlib import Path

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def problems(root: Path) -> list[str]:
    """What disagrees, one message per finding, each starting with the file."""
    version = (root / "VERSION").read_text(encoding="utf-8").strip()
    files = sorted(root.glob("packages/*/pyproject.toml"))
    found = [] if files else [f"{root / 'packages'}: no package found"]
    siblings = {path.parent.name for path in files}
    for path in files:
        project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        name = path.relative_to(root).as_posix()
        if project.get("name") != path.parent.name:
            found.append(
                f"{name}: name is {project.get('name')!r}, its folder {path.parent.name!r}"
            )
        if "version" in project.get("dynamic", []):
            found.append(f"{name}: the version is dynamic, write version = {version!r}")
        elif project.get("version") != version:
            found.append(f"{name}: version is {project.get('version')!r}, VERSION is {version!r}")
        for requirement in _requirements(project):
            found += _pin_problem(requirement, name=name, siblings=siblings, version=version)
    found += _module_problem(root / "MODULE.bazel", version=version)
    return found


def _requirements(project: dict[str, object]) -> list[str]:
    requirements = list(project.get("dependencies", []))  # type: ignore[call-overload]
    extras = project.get("optional-dependencies", {})
    for extra in extras.values():  # type: ignore[attr-defined]
        requirements += extra
    return requirements


def _pin_problem(requirement: str, *, name: str, siblings: set[str], version: str) -> list[str]:
    match = _NAME.match(requirement)
    distribution = re.sub(r"[-_.]+", "-", match[0]).lower() if match else requirement
    if distribution not in siblings:
        return []
    rest = re.sub(r"^\[[^]]*\]", "", requirement[len(distribution) :]).split(";")[0]
    if rest.replace(" ", "") == f"=={version}":
        return []
    return [f"{name}: {requirement!r} must be pinned as {distribution}=={version}"]


def _module_problem(path: Path, *, version: str) -> list[str]:
    if not path.is_file():
        return []
    match = re.search(r'version = "([^"]*)"', path.read_text(encoding="utf-8"))
    if match and match[1] == version:
        return []
    return [f"{path.name}: version is {match[1] if match else None!r}, VERSION is {version!r}"]


def main() -> int:
    """Check the repository that holds this file."""
    found = problems(Path(__file__).resolve().parents[1])
    for problem in found:
        print(problem, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
