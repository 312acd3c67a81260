"""`dllm-generate train`."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from transformers.utils import logging

from .common import errors, reported, written
from .options import parse_pair


def train_command(
    recipe: Annotated[Path, typer.Argument(help="A .yaml or .json file; docs/training.md lists its keys.")],
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", help="Replace a key of the recipe: name=value; a dot leads into a dict. Repeatable."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on behind the last whole checkpoint.")] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Folder of the run.")] = None,
) -> None:
    """Trains a model as a recipe says.

    Several processes: accelerate launch --num_processes 2 -m dllm_generate.cli train RECIPE
    """
    # Imported here, since the other commands need no trainer.
    from ..training.run import train

    if not sys.stderr.isatty():
        logging.disable_progress_bar()
    with reported():
        changed = dict(parse_pair(text) for text in changes or [])
        if output is not None:
            changed["output"] = str(output)
        training = train(recipe, resume=resume, progress=True, **changed)
    if training.written:
        last = training.metrics[-1] if training.metrics else {}
        errors.print(", ".join(f"{name} {value:g}" for name, value in last.items()), style="dim")
    for folder in training.written:
        written(folder)
