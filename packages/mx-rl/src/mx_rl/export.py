"""A checkpoint of a run as a model for others."""

from __future__ import annotations

from pathlib import Path

from mx_rl.errors import UserError
from mx_rl.models import prepare_model
from mx_rl.ray import learner_spec
from mx_rl.rundir import RunDirectory
from mx_rl.workers import LearnerWorker

FORMATS = ("hf", "mxfp8")


def export_run(run_path: str, *, format: str, out: Path, cache: Path) -> str:
    """Write the newest checkpoint of a run to ``out``, which must not exist; returns its version.

    "hf": bf16, loads in transformers. "mxfp8": the learner's forward bytes, loads in vLLM.
    """
    if format not in FORMATS:
        raise UserError(f"--format {format}: expected one of {', '.join(FORMATS)}")
    if out.exists():
        raise UserError(f"--out {out} exists already; give a path that does not")
    run = RunDirectory.open(run_path)
    try:
        config = run.config()
        _, checkpoint = run.latest()
        model = prepare_model(config.model.path, cache=cache)
        threads = config.ray.threads or 1
        spec = learner_spec(
            config, model=model, run=run.name, threads=threads, checkpoint=checkpoint / "learner"
        )
        worker = LearnerWorker(spec)
        try:
            version = worker.start()
            worker.export(str(out), format)
        finally:
            worker.close()
    finally:
        run.close()
    return version
