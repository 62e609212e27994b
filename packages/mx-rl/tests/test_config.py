from __future__ import annotations

import pytest

from mx_rl.config import Config, keys, load
from mx_rl.errors import UserError
from mx_rl.overrides import apply_overrides
from mx_rl.recipes import RECIPES, find_recipe


def refused(*assignments: str) -> str:
    with pytest.raises(UserError) as caught:
        apply_overrides(Config(), assignments)
    return str(caught.value)


def test_values_are_typed_as_yaml() -> None:
    config = apply_overrides(
        Config(),
        [
            "optimizer.learning_rate=1e-5",
            "optimizer.betas=[0.8, 0.9]",
            "algorithm.importance_cap=null",
            "run.precision_table=true",
            "precision.sampler=bf16",
            "sync.readback=0.25",
            "task.options.max_terms=3",
        ],
    )
    assert config.optimizer.learning_rate == 1e-5
    assert config.optimizer.betas == (0.8, 0.9)
    assert config.algorithm.importance_cap is None
    assert config.run.precision_table is True
    assert config.precision.sampler == "bf16"
    assert config.sync.readback == 0.25
    assert config.task.options == {"max_terms": 3}


def test_later_assignments_win() -> None:
    assert apply_overrides(Config(), ["run.seed=1", "run.seed=2"]).run.seed == 2


def test_an_unknown_key_is_answered_with_the_nearest_one() -> None:
    message = refused("optimizer.learning_rte=1")
    assert "optimizer.learning_rte: no such key" in message
    assert "did you mean 'optimizer.learning_rate'?" in message


def test_a_key_in_the_wrong_section_is_answered_with_the_right_one() -> None:
    assert "did you mean 'optimizer.learning_rate'?" in refused("learning_rate=1")


def test_an_unknown_section_is_answered_with_the_nearest_one() -> None:
    assert "did you mean 'sampling'?" in refused("samplng.max_tokens=1")


def test_a_wrong_value_names_key_expectation_and_what_was_found() -> None:
    message = refused("precision.learner=fp4")
    assert "precision.learner" in message
    assert "'mxfp8' or 'bf16'" in message
    assert "found 'fp4'" in message


def test_several_wrong_values_are_told_at_once() -> None:
    message = refused("run.steps=0", "sampling.group_size=1")
    assert "run.steps" in message
    assert "sampling.group_size" in message


@pytest.mark.parametrize("key", ["top_p", "top_k", "min_p"])
def test_truncated_sampling_is_refused_with_the_reason(key: str) -> None:
    message = refused(f"sampling.{key}=0.9")
    assert "is refused" in message
    assert "truncated distribution" in message


def test_a_section_alone_is_no_key() -> None:
    assert "that is a section; set one of sync.bucket_mib" in refused("sync=3")


def test_an_assignment_without_an_equals_sign_is_refused() -> None:
    assert "expected section.key=value" in refused("run.steps")


def test_a_value_that_is_not_yaml_is_refused() -> None:
    assert "is not a YAML value" in refused("run.name=[1")


def test_a_read_back_fraction_out_of_range_is_refused() -> None:
    assert "above 0 and at most 1" in refused("sync.readback=1.5")


def test_a_completion_must_leave_room_for_a_prompt() -> None:
    assert "leaves no room for a prompt" in refused("sampling.max_tokens=256")


def test_a_config_file_with_an_unknown_key_is_refused_like_the_command_line() -> None:
    values = Config().model_dump(mode="json")
    values["sync"]["bucket_mb"] = 1
    with pytest.raises(UserError, match="did you mean 'sync.bucket_mib'"):
        load(values)


@pytest.mark.parametrize("name", list(RECIPES))
def test_every_recipe_survives_being_written_and_read(name: str) -> None:
    config = find_recipe(name)
    assert load(config.model_dump(mode="json")) == config


def test_an_unknown_recipe_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(UserError, match="did you mean 'tiny_easy'"):
        find_recipe("tiny_eazy")


def test_a_recipe_of_ones_own_is_found_by_import_path() -> None:
    found = find_recipe("mx_rl.recipes.tiny_easy:tiny_easy")
    assert found == find_recipe("tiny_easy")


def test_a_recipe_that_returns_something_else_is_refused() -> None:
    with pytest.raises(UserError, match="returned list"):
        find_recipe("mx_rl.config:keys")


def test_every_key_can_be_set() -> None:
    values = Config().model_dump(mode="json")
    for key in keys():
        section, name = key.split(".")
        assert name in values[section]
