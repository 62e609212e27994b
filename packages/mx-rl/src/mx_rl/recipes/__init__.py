"""Recipes: functions that return a ``Config``. Chosen by name, or as ``module:function``."""

from __future__ import annotations

from collections.abc import Callable

from mx_rl.config import Config
from mx_rl.errors import UserError, did_you_mean
from mx_rl.plugins import import_object
from mx_rl.recipes.smollm2_chain_sum import smollm2_chain_sum
from mx_rl.recipes.tiny_easy import tiny_easy

RECIPES: dict[str, Callable[[], Config]] = {
    "smollm2_chain_sum": smollm2_chain_sum,
    "tiny_easy": tiny_easy,
}


def find_recipe(name: str) -> Config:
    """The configuration of a recipe. Raises UserError when there is none of that name."""
    if ":" in name:
        made = import_object(name, what="recipe")()
        if not isinstance(made, Config):
            raise UserError(
                f"recipe {name} returned {type(made).__name__}; expected mx_rl.config.Config"
            )
        return made
    if name not in RECIPES:
        raise UserError(
            f"no recipe {name!r}{did_you_mean(name, RECIPES)} (known: {', '.join(RECIPES)}; or "
            "module:function of your own)"
        )
    return RECIPES[name]()


__all__ = ["RECIPES", "find_recipe", "smollm2_chain_sum", "tiny_easy"]
