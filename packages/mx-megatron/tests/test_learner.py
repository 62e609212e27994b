import warnings
from typing import Any

import numpy as np
import pytest
import torch
from tiny import Sequence, random_sequences, reinforce, tiny_config

from mx_megatron.mcore import parallel_state
from mx_megatron.optim import NonFiniteStep

MODELS = {
    "qwen3": tiny_config("Qwen3ForCausalLM"),
    "llama-untied": tiny_config("LlamaForCausalLM"),
    "llama-tied": tiny_config("LlamaForCausalLM", tie_word_embeddings=True),
    "one group": tiny_config("LlamaForCausalLM", num_key_value_heads=1, rms_norm_eps=1e-5),
}


def flat(arrays: list[np.ndarray]) -> torch.Tensor:
    return torch.cat([torch.from_numpy(array) for array in arrays])


def reference(
    path: Any, sequences: list[Sequence], *, dtype: torch.dtype, temperature: float
) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the packages that transformers imports when present
        transformers = pytest.importorskip("transformers")
        model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=dtype).eval()
    out = []
    for sequence in sequences:
        tokens = torch.tensor([*sequence.prompt, *sequence.completion])
        with torch.no_grad():
            logits = model(tokens[None]).logits[0, len(sequence.prompt) - 1 : -1]
        scores = torch.log_softmax(logits.float() / temperature, dim=-1)
        out.append(scores.gather(1, torch.tensor(sequence.completion)[:, None])[:, 0])
    return torch.cat(out)


@pytest.mark.parametrize("model", list(MODELS))
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probs_agree_with_transformers_within_bf16_noise(
    learner_of: Any, model: str, temperature: float
) -> None:
    # Exact: the same bf16 weights in fp32. transformers in bf16 differs from it by its own
    # roundings after each operation, which measures the noise; the learner rounds at the same
    # places, so it may not be more than twice as far away. A wrong name, row order, rotary base
    # or norm is off by orders of magnitude more.
    learner = learner_of(MODELS[model], precision="bf16")
    sequences = random_sequences(12)
    ours = flat(learner.log_probs(sequences, temperature=temperature, micro_batch_tokens=128))
    exact, theirs = (
        reference(learner._path, sequences, dtype=dtype, temperature=temperature)
        for dtype in (torch.float32, torch.bfloat16)
    )
    noise = (theirs - exact).abs()
    error = (ours - exact).abs()
    assert float(error.mean()) < 2 * float(noise.mean())
    assert float(error.max()) < 3 * float(noise.max())
    assert float(noise.mean()) < 0.1


@pytest.mark.parametrize("budget", [1, 40, 10_000])
def test_log_probs_come_back_in_the_caller_s_order_for_any_budget(
    learner_of: Any, budget: int
) -> None:
    learner = learner_of(precision="bf16")
    sequences = [*random_sequences(9), Sequence([1, 2, 3], [])]
    together = learner.log_probs(sequences, temperature=1.0, micro_batch_tokens=budget)
    assert [len(array) for array in together] == [len(s.completion) for s in sequences]
    assert all(array.dtype == np.float32 for array in together)
    for sequence, array in zip(sequences, together, strict=True):
        (alone,) = learner.log_probs([sequence], temperature=1.0, micro_batch_tokens=10_000)
        # Attention may sum in another order at another padded length.
        np.testing.assert_allclose(array, alone, atol=0.15)


def test_a_step_returns_what_happened_and_moves_the_version(learner_of: Any) -> None:
    learner = learner_of()
    sequences = random_sequences(8)
    result = learner.step(sequences, reinforce(sequences), temperature=1.0, micro_batch_tokens=64)
    assert str(learner.version) == "test@1"
    assert result["tokens"] == sum(len(s.completion) for s in sequences)
    assert result["seen"] == len(sequences)
    assert result["grad_norm"] > 0
    assert np.isfinite(result["loss"])


def test_a_step_lowers_the_loss_it_follows(learner_of: Any) -> None:
    learner = learner_of(learning_rate=3e-4)
    sequences = random_sequences(8)
    losses = [
        learner.step(sequences, reinforce(sequences), temperature=1.0, micro_batch_tokens=64)[
            "loss"
        ]
        for _ in range(4)
    ]
    assert losses == sorted(losses, reverse=True)


@pytest.mark.parametrize("precision", ["bf16", "mxfp8"])
def test_the_same_seed_and_input_give_the_same_bytes(learner_of: Any, precision: str) -> None:
    sequences = random_sequences(8)
    manifests = []
    for _ in range(2):
        learner = learner_of(precision=precision)
        for _ in range(2):
            learner.step(sequences, reinforce(sequences), temperature=1.0, micro_batch_tokens=64)
        manifests.append(learner.source().manifest())
    assert manifests[0] == manifests[1]


def test_a_loss_that_is_not_finite_changes_nothing(learner_of: Any) -> None:
    learner = learner_of()
    before = learner.source().manifest()
    sequences = random_sequences(4)

    def loss_fn(log_probs: list[torch.Tensor], indices: list[int]) -> Any:
        return torch.stack([lp.sum() for lp in log_probs]).sum() * float("nan"), {}

    with pytest.raises(NonFiniteStep, match="loss is nan.*no weight was changed"):
        learner.step(sequences, loss_fn, temperature=1.0, micro_batch_tokens=64)
    assert learner.source().manifest() == before


def test_a_gradient_that_is_not_finite_changes_nothing(learner_of: Any) -> None:
    learner = learner_of()
    sequences = random_sequences(4)
    plain, spoilt = learner_of(), learner

    def loss_fn(log_probs: list[torch.Tensor], indices: list[int]) -> Any:
        total = torch.stack([lp.sum() for lp in log_probs]).sum()
        return (total - total.detach()).sqrt(), {}  # 0, with an infinite slope

    with pytest.raises(NonFiniteStep, match="gradient norm is (nan|inf)"):
        spoilt.step(sequences, loss_fn, temperature=1.0, micro_batch_tokens=64)
    assert spoilt.source().manifest() == plain.source().manifest()
    # The abandoned gradients are gone: the next step is the one of a learner that never failed.
    for each in (spoilt, plain):
        each.step(sequences, reinforce(sequences), temperature=1.0, micro_batch_tokens=64)
    assert spoilt.source().manifest() == plain.source().manifest()


def test_gradients_are_clipped_by_their_global_norm(learner_of: Any) -> None:
    sequences = random_sequences(4)
    clipped, free = learner_of(clip_grad=1e-3), learner_of(clip_grad=0.0)
    norms = [
        each.step(sequences, reinforce(sequences), temperature=1.0, micro_batch_tokens=64)[
            "grad_norm"
        ]
        for each in (clipped, free)
    ]
    squared = sum(float(p.main_grad.square().sum()) for p in clipped._parameters.values())
    assert norms[0] == norms[1] > 1
    assert squared**0.5 == pytest.approx(1e-3, rel=1e-3)


def test_metrics_may_not_hide_the_learner_s_own(learner_of: Any) -> None:
    sequences = random_sequences(2)
    with pytest.raises(ValueError, match="reserved names: grad_norm"):
        learner_of().step(
            sequences,
            lambda lps, _: (lps[0].sum(), {"grad_norm": 1.0}),
            temperature=1.0,
            micro_batch_tokens=64,
        )


def test_nothing_to_learn_from_is_an_error(learner_of: Any) -> None:
    sequences = [Sequence([1], [])]
    with pytest.raises(ValueError, match="no sequence has a completion token"):
        learner_of().step(
            sequences, reinforce(random_sequences(1)), temperature=1.0, micro_batch_tokens=64
        )


def test_the_process_group_ends_with_the_last_learner(learner_of: Any) -> None:
    first, second = learner_of(), learner_of()
    first.close()
    first.close()
    assert parallel_state.is_initialized()
    second.close()
    assert not torch.distributed.is_initialized()


def test_the_description_says_who_computes_and_why(learner_of: Any) -> None:
    told = learner_of(layers="skip:1,0").describe()
    assert told["backend"].startswith("emulation (")
    assert told["layers"] == "skip:1,0 (2 of 3 on the grid)"
    assert all(isinstance(value, str) for value in told.values())
