import pytest
import torch

from mx_megatron import scoring
from mx_megatron.scoring import check_temperature, token_log_probs


def example(rows: int = 700) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = (torch.randn(rows, 96, generator=generator) * 4).to(torch.bfloat16)
    return logits, torch.randint(0, 96, (rows,), generator=generator)


@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.3])
def test_log_probs_equal_log_softmax_of_float_logits_bit_for_bit(temperature: float) -> None:
    logits, targets = example()
    expected = torch.log_softmax(logits.float() / temperature, -1).gather(1, targets[:, None])[:, 0]
    assert torch.equal(token_log_probs(logits, targets, temperature=temperature), expected)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_gradient_equals_autograd_through_float_logits(temperature: float) -> None:
    logits, targets = example()
    weights = torch.linspace(-1, 1, len(targets))
    ours, theirs = (logits.clone().requires_grad_() for _ in range(2))
    (scoring._TokenLogProbs.apply(ours, targets, temperature) * weights).sum().backward()
    scores = torch.log_softmax(theirs.float() / temperature, -1).gather(1, targets[:, None])[:, 0]
    (scores * weights).sum().backward()
    # Both round the same float32 gradient to bf16 once; float32 sums may differ in the last bit,
    # which moves a bf16 rounding by at most one unit (2**-8 relative).
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=2**-7, atol=1e-6)


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan"), float("inf")])
def test_a_temperature_without_a_distribution_is_refused(temperature: float) -> None:
    with pytest.raises(ValueError, match="expected a positive number"):
        check_temperature(temperature)
