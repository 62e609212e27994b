"""Sequences into right-padded micro-batches of bounded size.

Shapes: S input positions, B sequences, R scored rows (one per completion token).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from mx_megatron.architecture import Architecture


class TokenSequence(Protocol):
    """A prompt and the completion whose log-probabilities are wanted."""

    @property
    def prompt(self) -> Sequence[int]: ...
    @property
    def completion(self) -> Sequence[int]: ...


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """``indices``: positions of the sequences in the caller's list.

    ``ids`` [B, S] int64, right-padded with 0; ``rows`` [R]: row ``position * B + sequence`` of the
    flattened hidden states [S * B, hidden] that predicts each completion token; ``targets`` [R]:
    those tokens; ``counts``: completion tokens of each sequence.
    """

    indices: tuple[int, ...]
    ids: Tensor
    rows: Tensor
    targets: Tensor
    counts: tuple[int, ...]


def check_sequences(sequences: Sequence[TokenSequence], arch: Architecture) -> None:
    """Raises ValueError listing the first sequences that the model cannot take, and why."""
    problems = []
    for index, sequence in enumerate(sequences):
        prompt, completion = list(sequence.prompt), list(sequence.completion)
        if not prompt:
            problems.append(
                f"sequence {index} has an empty prompt: nothing predicts its first token"
            )
        length = len(prompt) + len(completion)
        if length > arch.max_positions:
            problems.append(
                f"sequence {index} has {length} tokens, the model {arch.max_positions} positions"
            )
        bad = [token for token in prompt + completion if not 0 <= token < arch.vocab_size]
        if bad:
            problems.append(
                f"sequence {index} has token {bad[0]}, outside the vocabulary of {arch.vocab_size}"
            )
    if problems:
        raise ValueError("; ".join(problems[:8]))


def plan(
    sequences: Sequence[TokenSequence], *, micro_batch_tokens: int, device: torch.device
) -> list[MicroBatch]:
    """Micro-batches of at most ``micro_batch_tokens`` tokens, padding included, longest first.

    A single sequence above the budget is a micro-batch by itself. Sequences with an empty
    completion score nothing and are left out. Raises ValueError for a budget below 1.
    """
    if micro_batch_tokens < 1:
        raise ValueError(f"micro_batch_tokens={micro_batch_tokens}; expected at least 1")
    lengths = [len(s.prompt) + len(s.completion) - 1 for s in sequences]
    order = sorted(
        (index for index, s in enumerate(sequences) if len(s.completion)),
        key=lambda index: (-lengths[index], index),
    )
    groups: list[list[int]] = []
    for index in order:
        group = groups[-1] if groups else []
        if group and (len(group) + 1) * lengths[group[0]] <= micro_batch_tokens:
            group.append(index)
        else:
            groups.append([index])
    return [_pack(sequences, group, device) for group in groups]


def _pack(sequences: Sequence[TokenSequence], group: list[int], device: torch.device) -> MicroBatch:
    tokens = [[*sequences[index].prompt, *sequences[index].completion] for index in group]
    # The last token of a sequence predicts nothing that is scored, so it is no input.
    width = max(len(row) - 1 for row in tokens)
    ids = torch.tensor([row[:-1] + [0] * (width - len(row) + 1) for row in tokens])
    rows: list[int] = []
    targets: list[int] = []
    for column, (index, row) in enumerate(zip(group, tokens, strict=True)):
        first = len(sequences[index].prompt) - 1
        rows += [position * len(group) + column for position in range(first, len(row) - 1)]
        targets += row[first + 1 :]
    return MicroBatch(
        indices=tuple(group),
        ids=ids.to(device),
        rows=torch.tensor(rows, device=device),
        targets=torch.tensor(targets, device=device),
        counts=tuple(len(sequences[index].completion) for index in group),
    )
