import pytest
import torch
from tiny import Sequence, random_sequences, tiny_config

from mx_megatron.architecture import parse_architecture
from mx_megatron.batching import check_sequences, plan

ARCH = parse_architecture(tiny_config(), where="test")
CPU = torch.device("cpu")


def test_every_sequence_with_a_completion_is_in_exactly_one_micro_batch() -> None:
    sequences = [*random_sequences(20), Sequence([1, 2], [])]
    batches = plan(sequences, micro_batch_tokens=64, device=CPU)
    seen = sorted(index for batch in batches for index in batch.indices)
    assert seen == list(range(20))


def test_padded_micro_batches_stay_within_the_budget() -> None:
    batches = plan(random_sequences(20), micro_batch_tokens=64, device=CPU)
    assert all(batch.ids.numel() <= 64 for batch in batches)
    assert len(batches) < 20


def test_a_sequence_above_the_budget_is_a_micro_batch_by_itself() -> None:
    sequences = [Sequence([1] * 50, [2] * 50), Sequence([1], [2])]
    batches = plan(sequences, micro_batch_tokens=10, device=CPU)
    assert [batch.indices for batch in batches] == [(0,), (1,)]


def test_rows_point_at_the_position_before_each_completion_token() -> None:
    sequences = [Sequence([1, 2, 3], [4, 5]), Sequence([6], [7, 8, 9])]
    (batch,) = plan(sequences, micro_batch_tokens=100, device=CPU)
    assert batch.indices == (0, 1)
    inputs_SB = batch.ids.t().reshape(-1)
    assert inputs_SB[batch.rows].tolist() == [3, 4, 6, 7, 8]
    assert batch.targets.tolist() == [4, 5, 7, 8, 9]
    assert batch.counts == (2, 3)


@pytest.mark.parametrize(
    ("sequence", "message"),
    [
        (Sequence([], [1]), "empty prompt"),
        (Sequence([1] * 200, [1] * 57), "257 tokens, the model 256 positions"),
        (Sequence([1], [512]), "token 512, outside the vocabulary of 512"),
        (Sequence([-1], [5]), "token -1"),
    ],
)
def test_a_sequence_that_the_model_cannot_take_is_refused(sequence: Sequence, message: str) -> None:
    with pytest.raises(ValueError, match=f"sequence 1 has .*{message}|sequence 1.*{message}"):
        check_sequences([Sequence([1], [2]), sequence], ARCH)


def test_a_budget_below_one_token_is_refused() -> None:
    with pytest.raises(ValueError, match="micro_batch_tokens=0"):
        plan(random_sequences(), micro_batch_tokens=0, device=CPU)
