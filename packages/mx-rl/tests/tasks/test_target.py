from __future__ import annotations

from mx_rl.tasks import Answer, TargetTokens


def test_the_reward_is_the_share_of_target_tokens() -> None:
    task = TargetTokens([5, 6], size=4, seed=0)
    example = task.example(0)
    assert task.score(example, Answer((5, 6, 7, 8), "", None)) == 0.5
    assert task.score(example, Answer((), "", None)) == 0.0


def test_examples_depend_on_the_seed_and_the_index_only() -> None:
    first, again, other = (TargetTokens([1], size=4, seed=s) for s in (0, 0, 1))
    assert first.example(2) == again.example(2)
    assert [first.example(i).question for i in range(4)] != [
        other.example(i).question for i in range(4)
    ]
