import pytest

from mx_megatron.recipe import Recipe, select_layers
from mx_quant import MXFP8


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ("all", {0, 1, 2, 3, 4, 5}),
        ("none", set()),
        ("fraction:0", set()),
        ("fraction:1", {0, 1, 2, 3, 4, 5}),
        ("fraction:0.5", {1, 3, 5}),
        ("skip:1,1", {1, 2, 3, 4}),
        ("skip:0,2", {0, 1, 2, 3}),
        ("skip:3,3", set()),
    ],
)
def test_a_selection_names_the_layers_on_the_grid(layers: str, expected: set[int]) -> None:
    assert select_layers(layers, num_layers=6) == expected


@pytest.mark.parametrize("fraction", [0.1, 0.25, 1 / 3, 0.5, 0.7])
def test_a_fraction_selects_that_share_of_the_layers_rounded_down(fraction: float) -> None:
    assert len(select_layers(f"fraction:{fraction}", num_layers=40)) == int(40 * fraction + 1e-9)


@pytest.mark.parametrize(
    "layers",
    ["half", "fraction:", "fraction:1.5", "fraction:nan", "skip:1", "skip:a,b", "all:3", ""],
)
def test_a_malformed_selection_is_refused_with_the_syntax(layers: str) -> None:
    with pytest.raises(ValueError, match="fraction:X"):
        Recipe("mxfp8", layers)


def test_skipping_more_layers_than_there_are_is_refused() -> None:
    with pytest.raises(ValueError, match="the model has 6"):
        select_layers("skip:4,3", num_layers=6)


def test_an_unknown_precision_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="mxfp8, bf16"):
        Recipe("fp8", "all")


def test_a_bf16_recipe_has_no_grid_but_keeps_its_selection_for_export() -> None:
    recipe = Recipe("bf16", "skip:1,0")
    grids = [recipe.grid(i, num_layers=3) for i in range(3)]
    exported = [recipe.grid(i, num_layers=3, precision="mxfp8") for i in range(3)]
    assert grids == [None, None, None]
    assert exported == [None, MXFP8, MXFP8]
