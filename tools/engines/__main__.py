"""Command line of the engine build: ``python tools/engines {list,check,build}``."""

import argparse
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from engines import build, series, wheelfile  # noqa: E402
from engines.errors import EngineError  # noqa: E402


def main(argv: list[str]) -> int:
    """Run one command; 0 on success, 1 with a message on stderr when something is to be mended."""
    arguments = _parser().parse_args(argv)
    try:
        arguments.run(arguments)
    except EngineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tools/engines", description=__doc__)
    parser.add_argument("--root", type=Path, default=ROOT, help="repository (default: this one)")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    listing = commands.add_parser("list", help="engines, versions and patches")
    listing.set_defaults(run=_list)
    check = commands.add_parser("check", help="does every patch apply to every pinned wheel?")
    check.add_argument("engines", nargs="*", help="default: all")
    check.set_defaults(run=_check)
    make = commands.add_parser("build", help="build the patched wheel and print its path")
    make.add_argument("engine")
    make.add_argument("--python", default=build.this_python(), help="such as 3.11")
    make.add_argument("--out", type=Path, help="default: build/engines")
    make.add_argument("--wheel", type=Path, help="local copy of the pinned wheel")
    make.set_defaults(run=_build)
    return parser


def _list(arguments: argparse.Namespace) -> None:
    for engine in series.engines(arguments.root):
        s = series.load(arguments.root, engine=engine)
        print(f"{s.engine} {s.version}: {len(s.patches)} patches. {s.reason}")
        for patch in s.patches:
            print(f"  {patch.name}\n    {patch.reason} [{patch.upstream}]")


def _check(arguments: argparse.Namespace) -> None:
    for engine in arguments.engines or series.engines(arguments.root):
        s = series.load(arguments.root, engine=engine)
        if not s.patches:
            print(f"{engine}: ok, empty series")
            continue
        for pin in s.wheels:
            source = build.fetch(s, pin=pin, downloads=arguments.root / "build/engines/downloads")
            with tempfile.TemporaryDirectory(prefix="mx-engine-") as folder:
                tree = Path(folder).resolve() / "wheel"
                wheelfile.unpack(source, into=tree)
                landed = build.apply_all(s, tree=tree)
            print(
                f"{engine}: ok, {sum(landed.values())} hunks of {len(landed)} patches landed "
                f"in {pin.filename}"
            )


def _build(arguments: argparse.Namespace) -> None:
    s = series.load(arguments.root, engine=arguments.engine)
    pin = s.pin(python=arguments.python, machine=build.this_machine())
    out = arguments.out or arguments.root / "build" / "engines"
    print(build.build(s, pin=pin, out=out, source=arguments.wheel))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
