from typing import Any

import pytest
import torch
from tiny import random_sequences, reinforce, tiny_config

import mx_quant
from mx_megatron.layout import split_mx
from mx_megatron.names import parameter_maps

BUDGET = 64


def on_grid(learner: Any) -> set[int]:
    return {layer for _, layer, module in learner._weights.layers if module.grid is not None}


def step(learner: Any, sequences: list[Any], **changes: Any) -> dict[str, float]:
    settings = {"temperature": 1.0, "micro_batch_tokens": BUDGET} | changes
    result: dict[str, float] = learner.step(sequences, reinforce(sequences), **settings)
    return result


def gradients(learner: Any) -> dict[str, torch.Tensor]:
    return {name: p.main_grad.clone() for name, p in learner._parameters.items()}


def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(a.flatten(), b.flatten(), dim=0))


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize(
    ("layers", "expected"),
    [("all", {0, 1, 2}), ("none", set()), ("fraction:0.34", {2}), ("skip:1,1", {1})],
)
def test_the_selected_layers_and_no_others_are_on_the_grid(
    learner_of: Any, layers: str, expected: set[int]
) -> None:
    learner = learner_of(layers=layers)
    quantized = learner.source().manifest().quantized
    assert on_grid(learner) == expected
    assert {int(name.split(".")[2]) for name in quantized} == expected
    assert len(quantized) == 7 * len(expected)


def test_weights_are_quantized_once_per_step_however_many_micro_batches(learner_of: Any) -> None:
    learner = learner_of()
    sequences = random_sequences(8)
    layers = 4 * 3
    assert learner._weights.quantizations == layers
    for count in (2, 3):
        result = step(learner, sequences)
        assert result["micro_batches"] > 1
        learner.log_probs(sequences, temperature=1.0, micro_batch_tokens=BUDGET)
        assert learner._weights.quantizations == count * layers


def test_prepared_weights_follow_the_parameters_after_a_step(learner_of: Any) -> None:
    learner = learner_of(learning_rate=1e-2)
    before = {name: m.prepared.rowwise.clone() for name, _, m in learner._weights.layers}
    head_before = learner._weights.prepared_head.forward.matrix.clone()
    step(learner, random_sequences())
    for name, _, module in learner._weights.layers:
        fresh = mx_quant.quantize(module.weight.detach(), grid=mx_quant.MXFP8)
        assert mx_quant.digest(module.prepared.rowwise) == mx_quant.digest(fresh)
        assert mx_quant.digest(module.prepared.rowwise) != mx_quant.digest(before[name])
    assert not torch.equal(learner._weights.prepared_head.forward.matrix, head_before)


def test_manifest_digests_equal_what_the_forward_gemm_reads_back(learner_of: Any) -> None:
    learner = learner_of()
    step(learner, random_sequences())
    manifest = learner.source().manifest()
    checked = 0
    for entry in parameter_maps(learner._arch):
        if not entry.linear:
            continue
        prepared = learner._weights.module(entry.module).prepared
        read = prepared.forward.read_back(grid=mx_quant.MXFP8, scales=prepared.rowwise.scales)
        for (name, _), part in zip(
            entry.parts, split_mx(read, entry.fusion, learner._arch), strict=True
        ):
            assert manifest.spec(name).digest == mx_quant.digest(part), name
            checked += 1
    assert checked == len(manifest.quantized) == 21


def test_scoring_in_another_precision_leaves_the_live_weights_alone(learner_of: Any) -> None:
    mx, plain = learner_of(), learner_of(precision="bf16")
    sequences = random_sequences()

    def score(learner: Any, precision: str | None) -> torch.Tensor:
        arrays = learner.log_probs(
            sequences, temperature=1.0, micro_batch_tokens=BUDGET, precision=precision
        )
        return torch.cat([torch.from_numpy(array) for array in arrays])

    before = score(mx, None)
    assert torch.equal(score(mx, "bf16"), score(plain, None))
    assert torch.equal(score(plain, "mxfp8"), before)
    assert torch.equal(score(mx, None), before)
    assert not torch.equal(before, score(mx, "bf16"))


def test_the_mxfp8_gradient_points_where_the_bf16_gradient_points(learner_of: Any) -> None:
    # E4M3 rounds each operand by at most 2**-4 relative, 2.7e-2 in the mean square; a gradient has
    # passed through two quantized operands in each of up to 24 GEMMs, so it is off by about
    # sqrt(48) * 2.7e-2 = 0.19 relative: a cosine of 0.98. The weights of the per-head norms sum
    # contributions of both signs over all tokens and are off by more. Another layer's or a
    # transposed weight gives cosines near 0.
    sequences = random_sequences(16)
    mx, plain = learner_of(), learner_of(precision="bf16")
    for learner in (mx, plain):
        step(learner, sequences, micro_batch_tokens=256)
    a, b = gradients(mx), gradients(plain)
    cosines = {name: cosine(a[name], b[name]) for name in a}
    assert min(c for name, c in cosines.items() if a[name].ndim == 2) > 0.93, cosines
    assert min(c for name, c in cosines.items() if a[name].ndim == 1) > 0.8, cosines


@pytest.mark.parametrize("precision", ["bf16", "mxfp8"])
def test_the_gradient_does_not_depend_on_the_micro_batch_split(
    learner_of: Any, precision: str
) -> None:
    # Sequences do not see each other, so only rounding differs: each micro-batch's gradient is
    # rounded to bf16 (2**-9 relative) before it is added in fp32. In mxfp8 the columnwise blocks
    # of x and dy span other tokens, so wgrad's quantization error itself is drawn anew.
    sequences = random_sequences(12)
    whole, parts = (learner_of(precision=precision, clip_grad=0.0) for _ in range(2))
    one = step(whole, sequences, micro_batch_tokens=10_000)
    many = step(parts, sequences, micro_batch_tokens=40)
    assert one["micro_batches"] == 1 < many["micro_batches"]
    assert one["loss"] == pytest.approx(many["loss"], rel=1e-5)
    a, b = gradients(whole), gradients(parts)
    limit = 0.02 if precision == "bf16" else 0.1
    worst = {name: relative(a[name], b[name]) for name in a}
    assert max(worst.values()) < limit, worst


def test_sides_that_are_no_multiple_of_32_are_refused_with_layers_and_shapes(
    learner_of: Any,
) -> None:
    config = tiny_config(intermediate_size=240)
    with pytest.raises(ValueError, match=r"layers 1 have .*linear_fc2 \[rows, K\] = \[128, 240\]"):
        learner_of(config, layers="skip:1,1")
    assert learner_of(config, layers="none").source().manifest().quantized == ()
    assert learner_of(config, precision="bf16").describe()["precision"] == "bf16"
