"""The checkpoint that a run goes on from."""

import json
from collections.abc import Iterator
from pathlib import Path

from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from ..registry import require
from .recipe import Recipe
from .saving import ADAPTER, MODEL

METRICS, RECIPE = "metrics.jsonl", "recipe.yaml"
# What may differ in a run that goes on.
FREE = ("output", "keep")


def find_checkpoint(recipe: Recipe, resume: bool) -> str | None:
    """The last whole checkpoint in the output folder of a recipe; None if there is none.

    Args:
        recipe: of the run that is to begin or to go on.
        resume: whether to go on.

    Raises:
        ValueError: checkpoints, results, recipe or metrics in the folder of a new run; a file instead of a folder;
            another recipe than that of the run that is to go on.
    """
    output = Path(recipe.output)
    require(output.is_dir() or not output.exists(), "output", recipe.output, "a folder, not a file")
    if not resume:
        found = ["checkpoints"] if any(_numbered(output)) else []
        found += [name for name in (MODEL, ADAPTER, RECIPE, METRICS) if (output / name).exists()]
        if found:
            held = ", ".join(found)
            raise ValueError(f"`output` is {recipe.output!r}, which holds {held}: resume, or name another folder.")
        return None
    if (output / RECIPE).is_file():
        begun = Recipe.read(output / RECIPE).to_dict()
        for key, value in recipe.to_dict().items():
            if key not in FREE and value != begun[key]:
                raise ValueError(f"`{key}` is {value!r}, but must be {begun[key]!r}, as in the run that is resumed.")
    whole = [(step, folder) for step, folder in _numbered(output) if _is_whole(folder)]
    return str(max(whole)[1]) if whole else None


def _numbered(output: Path) -> Iterator[tuple[int, Path]]:
    for folder in output.glob(f"{PREFIX_CHECKPOINT_DIR}-*"):
        number = folder.name.removeprefix(f"{PREFIX_CHECKPOINT_DIR}-")
        if number.isdigit():
            yield int(number), folder


def _is_whole(folder: Path) -> bool:
    """Whether nothing is missing: the state of the trainer is what is written last."""
    try:
        json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return True
