"""The command line ``mx-rl``. Exit codes: 0 done; 1 a run failed; 2 bad input; 128 + signal when
a signal ended it (with a checkpoint)."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mx_rl import compat
from mx_rl.errors import RoleDied, RoleFailed, UserError

if TYPE_CHECKING:
    from mx_rl.config import Config
    from mx_rl.rundir import RunDirectory

DEFAULT_RECIPE = "smollm2_chain_sum"


def entry() -> None:
    """Console script."""
    sys.exit(main(sys.argv[1:]))


def main(arguments: Sequence[str]) -> int:
    """Run one command; returns the exit code."""
    from mx_sync import SyncError

    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        code: int = options.run(options)
    except UserError as error:
        return _fail(error, 2)
    except (RoleDied, RoleFailed, SyncError) as error:
        return _fail(error, 1)
    except KeyboardInterrupt:
        print("mx-rl: ended at once, without a checkpoint of this step", file=sys.stderr)
        return 130
    return code


def _fail(error: BaseException, code: int) -> int:
    notes = "".join(f"\n  {note}" for note in getattr(error, "__notes__", ()))
    print(f"mx-rl: error: {error}{notes}", file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mx-rl", description="Reinforcement learning with MXFP8 on both sides."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    train = commands.add_parser("train", help="train a model, or go on with a run")
    train.add_argument("recipe", nargs="?", help=f"name or module:function ({DEFAULT_RECIPE})")
    train.add_argument("--resume", metavar="RUN_DIR", help="go on from its last checkpoint")
    _add_set(train)
    train.set_defaults(run=_train)

    demo = commands.add_parser("demo", help="SmolLM2 learns to add, with all figures at the end")
    _add_set(demo)
    demo.set_defaults(run=_demo)

    doctor = commands.add_parser("doctor", help="what this machine has, and what is missing")
    doctor.set_defaults(run=_doctor)

    export = commands.add_parser("export", help="a run's newest checkpoint as a model")
    export.add_argument("run_dir")
    export.add_argument("--format", default="hf", help="hf (bf16, default) or mxfp8")
    export.add_argument("--out", required=True, type=Path, help="a directory that is made")
    export.set_defaults(run=_export)

    bench = commands.add_parser("bench", help="measure sync, generation, update and a whole step")
    bench.add_argument("--model", default="smollm2-135m", help="a known name or a directory")
    bench.add_argument("--only", nargs="+", metavar="PART", help="some of the parts")
    bench.add_argument("--rounds", type=int, default=3, help="measurements; the median is given")
    bench.set_defaults(run=_bench)
    return parser


def _add_set(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        dest="assignments",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change a setting, such as precision.sampler=bf16; may be repeated",
    )


def _train(options: argparse.Namespace) -> int:
    from mx_rl.overrides import apply_overrides
    from mx_rl.recipes import find_recipe
    from mx_rl.rundir import RunDirectory
    from mx_rl.train import resumed_config

    if options.resume is None:
        config = apply_overrides(find_recipe(options.recipe or DEFAULT_RECIPE), options.assignments)
        return _run(config, None)
    if options.recipe is not None:
        raise UserError("give a recipe or --resume, not both: a run keeps its own settings")
    run = RunDirectory.open(options.resume)
    return _run(resumed_config(run, options.assignments), run)


def _demo(options: argparse.Namespace) -> int:
    from mx_rl.overrides import apply_overrides
    from mx_rl.recipes import find_recipe

    table = ["run.precision_table=true"]
    return _run(apply_overrides(find_recipe(DEFAULT_RECIPE), [*table, *options.assignments]), None)


def _run(config: Config, run: RunDirectory | None) -> int:
    from mx_rl.interrupt import stop_on_signals
    from mx_rl.report import Report
    from mx_rl.rundir import RunDirectory
    from mx_rl.train import prepare, run_training

    inputs = prepare(config, cache=compat.cache_directory())
    run = run or RunDirectory.create(config)
    report = Report(steps=config.run.steps)
    try:
        with report, stop_on_signals(report.say) as stop:
            finished = run_training(config, inputs, run=run, report=report, stopping=stop)
    finally:
        run.close()
    report.say(f"run directory: {run.path}")
    if not finished:
        report.say(f"stopped early; go on with: mx-rl train --resume {run.path}")
    return 0 if finished or stop.signal is None else 128 + stop.signal


def _doctor(options: argparse.Namespace) -> int:
    from mx_rl.doctor import doctor

    return doctor()


def _export(options: argparse.Namespace) -> int:
    from mx_rl.export import export_run

    version = export_run(
        options.run_dir, format=options.format, out=options.out, cache=compat.cache_directory()
    )
    print(f"{version} as {options.format}: {options.out}")
    return 0


def _bench(options: argparse.Namespace) -> int:
    from mx_rl.bench import run_benchmarks

    return run_benchmarks(
        options.model,
        only=options.only,
        rounds=options.rounds,
        cache=compat.cache_directory(),
    )


if __name__ == "__main__":
    entry()
