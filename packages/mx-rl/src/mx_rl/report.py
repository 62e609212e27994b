"""What a person sees: a line a step, a progress bar on a terminal, tables at the end."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

Record = Mapping[str, Any]

_FILE_COLUMNS = 160


class Report:
    """The listener of a run in a terminal or a log file."""

    def __init__(self, *, steps: int, console: Console | None = None) -> None:
        self.console = console or make_console()
        self._steps = steps
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self._task = self._progress.add_task("start", total=steps)

    def __enter__(self) -> Report:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        self.console.print(text, markup=False)

    def phase(self, name: str, step: int) -> None:
        self._progress.update(self._task, description=f"step {step}: {name}")

    def step(self, record: Record) -> None:
        self._progress.update(self._task, completed=int(record["step"]))
        self.say(step_line(record, steps=self._steps))

    def steps(self, records: Sequence[Record]) -> None:
        if records:
            self.console.print(steps_table(records))

    def precisions(self, rows: Sequence[Record]) -> None:
        self.console.print(precisions_table(rows))


def make_console() -> Console:
    """Standard output; wide enough for the tables where it is a file and has no width."""
    width = None if sys.stdout.isatty() else _FILE_COLUMNS
    return Console(file=sys.stdout, highlight=False, soft_wrap=True, width=width)


def step_line(record: Record, *, steps: int) -> str:
    """One step on one line."""
    return (
        f"step {record['step']}/{steps}"
        f"  reward {record['reward_mean']:.3f}"
        f"  KL {record['kl_k3']:.2e} (k1 {record['kl_k1']:+.2e})"
        f"  sync {record['sync_seconds']:.2f} s {megabytes(record['sync_bytes'])}"
        f"  bytes equal: {equal_text(record)}"
        f"  [sample {record['sampler_seconds']:.1f} s, learn {record['learner_seconds']:.1f} s,"
        f" {record['tokens']} tokens, {record['weight_version']}]"
    )


def equal_text(record: Record) -> str:
    """``bytes_equal`` in words; what was not read back is not called equal."""
    if record["bytes_equal"]:
        return f"yes ({record['sync_checked']} read back)"
    return f"not checked ({record['sync_checked']} of {record['sync_tensors']} read back)"


def megabytes(count: int) -> str:
    """Bytes as a person reads them."""
    return f"{count / 1e6:.1f} MB"


def steps_table(records: Sequence[Record]) -> Table:
    """All steps."""
    table = Table(title="Steps", title_justify="left")
    for name in (
        "step",
        "reward",
        "KL k3",
        "KL k1",
        "|dlogp|",
        "mult. prob. error",
        "sample s",
        "learn s",
        "sync s",
        "sync bytes",
        "bytes equal",
        "tokens",
    ):
        table.add_column(name, justify="right")
    for r in records:
        table.add_row(
            str(r["step"]),
            f"{r['reward_mean']:.3f}",
            f"{r['kl_k3']:.2e}",
            f"{r['kl_k1']:+.2e}",
            f"{r['logprob_abs_diff']:.2e}",
            f"{r['token_mult_prob_error']:.4f}",
            f"{r['sampler_seconds']:.1f}",
            f"{r['learner_seconds']:.1f}",
            f"{r['sync_seconds']:.2f}",
            megabytes(r["sync_bytes"]),
            "yes" if r["bytes_equal"] else "not checked",
            str(r["tokens"]),
        )
    return table


def precisions_table(rows: Sequence[Record]) -> Table:
    """The four pairs of precisions at fixed weights."""
    table = Table(title="Train-rollout KL at the final weights, same prompts", title_justify="left")
    for name in ("learner", "sampler", "KL k3", "KL k1", "|dlogp|", "mult. prob. error", "tokens"):
        table.add_column(name, justify="left" if name in ("learner", "sampler") else "right")
    for row in rows:
        table.add_row(
            row["learner"],
            row["sampler"],
            f"{row['kl_k3']:.2e} ± {row['kl_k3_stderr']:.1e}",
            f"{row['kl_k1']:+.2e}",
            f"{row['logprob_abs_diff']:.2e}",
            f"{row['token_mult_prob_error']:.4f}",
            str(row["tokens"]),
        )
    return table
