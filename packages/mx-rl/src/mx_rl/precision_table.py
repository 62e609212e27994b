"""The train-rollout KL of all four pairs of precisions, at fixed weights and on the same prompts.

Each sampler precision generates once; the learner scores those tokens in both precisions. So a row
of the table differs only in who computed, not in weights, prompts or (within one sampler) tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from mx_rl.config import Precision
from mx_rl.parity import parity
from mx_rl.roles import Team
from mx_rl.types import Completion, Floats, SampleRequest, Scored

PRECISIONS: tuple[Precision, ...] = get_args(Precision)


def precision_table(team: Team, request: SampleRequest, *, live: Precision) -> list[dict[str, Any]]:
    """One row for each {learner} x {sampler}; ``live``: the precision of the team's sampler.

    The team's sampler is replaced: it is in the other precision afterwards.
    """
    order = [live, *(precision for precision in PRECISIONS if precision != live)]
    rows = []
    for sampler in order:
        if sampler != live:
            team.replace_sampler(sampler)
        completions = team.generate(request)
        rows += [
            {
                "learner": learner,
                "sampler": sampler,
                **_figures(team, request, completions, learner),
            }
            for learner in PRECISIONS
        ]
    return sorted(rows, key=lambda row: (row["learner"], row["sampler"]))


def _figures(
    team: Team, request: SampleRequest, completions: Sequence[Completion], learner: Precision
) -> dict[str, float]:
    sequences = [Scored(request.prompts[c.prompt_index], c.tokens) for c in completions]
    scores: list[Floats] = team.score(sequences, precision=learner)
    return parity(learner=scores, sampler=[c.log_probs for c in completions]).as_dict()
