"""The live engine: a live update equals a cold boot, and nothing wrong goes live."""

from __future__ import annotations

from typing import Any

import pytest

Facts = dict[str, Any]

pytestmark = [pytest.mark.engine, pytest.mark.slow]


def quantized(facts: Facts) -> bool:
    return bool(facts["describe"]["precision"] == "mxfp8")


def test_an_updated_engine_equals_a_fresh_one_on_the_same_weights_bit_for_bit(live: Facts) -> None:
    assert live["b"] == live["fresh"]
    assert live["b"] != live["a"]


def test_going_back_gives_the_first_outputs_again(live: Facts) -> None:
    assert live["a again"] == live["a"]


def test_every_name_is_read_back_equal_to_the_manifest(live: Facts) -> None:
    # Names of the tiny models: 2 layers, embedding, final norm and output layer.
    count = 2 * (9 if live["fresh"] and "llama" in live["kind"] else 11) + 3
    assert live["report"] == {"equal": True, "checked": count, "version": "test@1"}


def test_parameters_and_operands_keep_their_addresses(live: Facts) -> None:
    same, count = live["pointers"]
    assert same
    assert count > 20


def test_a_buffer_that_is_reused_at_once_and_any_order_of_tensors_do_no_harm(live: Facts) -> None:
    # The first update went through the scribbling sink as well.
    assert live["order"] == {"equal": True, "b": live["fresh"]}


def test_versions_are_told_per_token_span_and_by_the_engine(live: Facts) -> None:
    expected = {"spans": [(0, 5, "test@1")], "engine": "test@1", "sampler": "test@1"}
    assert live["labels"] == expected


def test_cached_prefixes_of_the_old_weights_are_not_used(live: Facts) -> None:
    # Prompt 3 fills whole KV blocks and was sampled from before and after the update.
    long = [sample for sample in live["b"] if sample[0] == 3]
    assert long == [sample for sample in live["fresh"] if sample[0] == 3]


@pytest.mark.parametrize(
    ("where", "names"),
    [
        ("operand", "model.layers.1.mlp.gate_proj.weight"),
        ("parameter", "model.layers.1.mlp.up_proj.weight"),
        ("norm", "model.norm.weight"),
        ("head", "lm_head.weight"),
    ],
)
def test_a_flipped_byte_is_reported_by_name_and_a_whole_sync_heals(
    live: Facts, where: str, names: str
) -> None:
    flip = live["flip"][where]
    assert names in flip["names"]
    assert flip["refusal"].startswith("SamplerPoisoned")
    assert flip["equal"]
    assert live["flip"]["b"] == live["fresh"]


def test_a_sampler_refuses_between_and_after_the_halves_of_a_killed_sync(live: Facts) -> None:
    killed = live["killed"]
    assert killed["during"].startswith("SyncInProgress")
    assert killed["after"].startswith("SamplerPoisoned")
    assert "the sender is gone" in killed["after"]
    assert killed["equal"]
    assert killed["b"] == live["fresh"]


def test_a_manifest_without_a_tensor_is_refused_and_the_held_version_goes_on(live: Facts) -> None:
    assert live["refused"]["missing"].startswith("SetMismatch")
    assert "input_layernorm" in live["refused"]["missing"]
    assert live["refused"]["after missing"] == "generated"


def test_a_layer_that_is_on_the_grid_on_one_side_only_is_refused_by_name(live: Facts) -> None:
    told = live["refused"]["form"]
    assert "model.layers.0.self_attn.q_proj.weight is" in told
    assert ("bf16 on the learner, mxfp8 here" in told) is quantized(live)
    assert live["refused"]["after form"].startswith("SamplerPoisoned")


def test_a_request_alone_equals_the_same_request_in_a_batch_of_32(live: Facts) -> None:
    batch = live["batch"]
    assert len(batch["batch"]) == 32
    assert batch["alone"][0] == batch["batch"][0]
    assert batch["again"] == batch["batch"]


def test_samples_of_one_prompt_have_seeds_of_their_own(live: Facts) -> None:
    samples = {tuple(tokens) for index, tokens, _ in live["batch"]["batch"] if index == 0}
    assert len(samples) == 8


def test_scoring_gives_the_log_probs_of_sampling_bit_for_bit(live: Facts) -> None:
    batch = live["batch"]
    assert batch["scored"] == [log_probs for _, _, log_probs in batch["batch"]]
    assert batch["one"] == batch["scored"][-1]


def test_log_probs_have_the_temperature_applied_and_greedy_ones_that_of_one(live: Facts) -> None:
    score = live["score"]
    assert score["one"] == score["greedy"]
    # The likeliest token only gets likelier at a lower temperature.
    assert all(half > one for half, one in zip(score["half"], score["one"], strict=True))


def test_a_stop_token_ends_a_completion_and_is_part_of_it(live: Facts) -> None:
    score = live["score"]
    assert score["reason"] == "stop"
    assert score["stopped"] == score["tokens"][: len(score["stopped"])]
    assert score["stopped"][-1] == score["tokens"][3]


@pytest.mark.parametrize(
    ("case", "told"),
    [
        ("empty", "is empty"),
        ("long", "max_model_len"),
        ("vocabulary", "token ids outside"),
        ("temperature", "temperature must be"),
        ("none", "n must be at least 1"),
    ],
)
def test_a_bad_request_says_what_is_wrong(live: Facts, case: str, told: str) -> None:
    assert told in live["requests"][case]
