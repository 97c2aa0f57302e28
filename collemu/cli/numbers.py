"""What collectives of a command carry: dtypes, recipes and operators that go together."""

import argparse
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from collemu.cli.words import listed, names

if TYPE_CHECKING:
    from collemu.cli.fits import Fit
    from collemu.recipe import Recipe


def add_recipe_flags(group: Any) -> None:
    """Add the flags that say how to quantise."""
    group.add_argument(
        "--wire",
        default=None,
        metavar="F",
        help="formats on the wire; none: the dtype; dtype: as none, but sums are rounded only when sent (default none)",
    )
    group.add_argument(
        "--recipe",
        default=None,
        metavar="R",
        help="how published systems quantise, beside --wire if both are given; collemu recipes lists them",
    )
    group.add_argument(
        "--accumulate",
        default="float32",
        metavar="T",
        help="add in float32, float16, bfloat16, float16_saturating (default float32)",
    )
    group.add_argument("--scale-mode", default=None, metavar="M", help="rule of scales on the wire (default: its own)")
    group.add_argument(
        "--requantise",
        default="shot",
        metavar="W",
        help="round sums to the wire format when they are sent: shot; or after every addition: hop (default shot)",
    )


def numbers(
    dtypes: Sequence[str],
    arguments: argparse.Namespace,
    operators: Sequence[str],
    fits: "Fit | None",
) -> "list[tuple[str, Recipe, str]]":
    """Triples of dtype, recipe and operator that go together.

    Raises
    ------
    ValueError
        For a name that does not exist, or one that was given and goes with nothing.
    """
    from collemu.payload import payload_of

    recipes = recipes_of(arguments)
    operations = names(arguments.op, operators, "operation")
    good: list[tuple[str, Recipe, str]] = []
    faults: list[tuple[str, Recipe, ValueError]] = []
    for dtype, recipe, op in itertools.product(dtypes, recipes, operations):
        try:
            payload = payload_of("all_reduce", dtype, recipe, op)
            if fits:
                fits(dtype, payload)
        except ValueError as error:
            faults.append((dtype, recipe, error))
        else:
            good.append((dtype, recipe, op))
    used: set[Any] = {name for dtype, recipe, _ in good for name in (dtype, recipe)}
    used |= set(dtypes) if arguments.datatype == "all" else set()
    used |= set(recipes) if "all" in (arguments.wire, arguments.recipe) else set()
    for dtype, recipe, error in faults:
        if not good or dtype not in used or recipe not in used:
            raise error
    return good


def recipes_of(arguments: argparse.Namespace) -> "list[Recipe]":
    """The recipes that the flags name, each once."""
    from collemu.number_formats import wire_formats
    from collemu.published import find_recipe, recipes
    from collemu.recipe import ACCUMULATE, DTYPE, Recipe

    published = [] if arguments.recipe is None else [find_recipe(name) for name in listed(arguments.recipe, recipes())]
    if published and arguments.wire is None:
        for flag, default in (("accumulate", "float32"), ("scale_mode", None), ("requantise", "shot")):
            if getattr(arguments, flag) != default:
                raise ValueError(f"--{flag.replace('_', '-')} goes with --wire; a recipe has its own")
        return published
    plain: list[Recipe] = []
    for wire in listed(arguments.wire or "none", ("none", DTYPE, *wire_formats())):
        for accumulate in listed(arguments.accumulate, tuple(ACCUMULATE)):
            # what needs a wire format is left away without one, unless that is all there is
            rules: dict[str, Any] = {"scale_mode": arguments.scale_mode, "requantise": arguments.requantise}
            alone = wire == "none" and arguments.wire not in (None, "none")
            plain.append(Recipe(wire, accumulate, **({} if alone else rules)))
    return [*plain, *published]


def algorithm_of(recipe: "Recipe", collective: str, algorithm: str, arguments: argparse.Namespace) -> str | None:
    """The algorithm of a collective under a recipe: in place of ``auto`` that of a published recipe which has but one.

    Returns
    -------
    str or None
        None: leave it out, as the recipe is not for the collective, and one of the two came from ``all``.

    Raises
    ------
    ValueError
        If the recipe is not for the collective, and both were named.
    """
    if algorithm != "auto" or not recipe.name:
        return algorithm
    from collemu.published import find_published

    own = find_published(recipe.name).algorithms
    if collective in own:
        return own[collective][0] if len(own[collective]) == 1 else algorithm
    if "all" in (arguments.collective, arguments.recipe):
        return None
    raise ValueError(
        f"recipe {recipe.name} is for {', '.join(own)}, not {collective}; name an algorithm to use it all the same"
    )
