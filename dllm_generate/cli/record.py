"""`dllm-generate record`."""

import tempfile
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from ..evaluation.prompts import Prompt, read_prompts
from ..evaluation.tasks import LONG_LEVEL, TASKS
from .common import errors, load_model, reported, written
from .options import generation_options, model_options, takes


@takes(generation=generation_options, source=model_options)
def record_command(
    output: Annotated[Path, typer.Option("--output", "-o", help="The .safetensors file to write.")],
    prompts: Annotated[
        Path | None,
        typer.Option(
            "--prompts",
            "-p",
            help='A .jsonl file of {"prompt": ..., "answer": ...}; or, with --unverified, without answers or a text '
            "file, a prompt per line. Default: training problems of the bundled tasks.",
        ),
    ] = None,
    n: Annotated[
        int | None, typer.Option("-n", min=1, help="Problems, default 1000; or the first prompts of a file, all.")
    ] = None,
    tasks: Annotated[
        str | None,
        typer.Option("--tasks", help=f"Of: {', '.join(TASKS)}; commas between. Default: all but table."),
    ] = None,
    level: Annotated[
        int, typer.Option("--level", help="Longest answers: 0 (short) to 3 (long).", min=0, max=LONG_LEVEL)
    ] = LONG_LEVEL,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Prompts decoded together.")] = 8,
    unverified: Annotated[bool, typer.Option("--unverified", help="Keep wrong answers, too.")] = False,
    *,
    generation: dict[str, Any],
    source: dict[str, Any],
) -> None:
    """Records how a model decodes prompts, for trajectory distillation.

    Kept are the answers that are right. The problems of the bundled tasks are none of the held-out ones. --seed is that
    of the problems and of sampling, --max-new-tokens the length of the canvas.
    """
    # Imported here, since the other commands need no training code.
    from ..training.recording import record, training_prompts

    with reported():
        if output.suffix != ".safetensors":
            raise ValueError(f"`output` is {str(output)!r}, but must be a file whose name ends in .safetensors.")
        _check_writable(output)
        seed = generation.pop("seed")
        found = _prompts(prompts, tasks)
        if found is None:
            names = [name.strip() for name in tasks.split(",")] if tasks else None
            found = training_prompts(names, n or 1000, seed, level)
        model, tokenizer = load_model(source)
        torch.manual_seed(seed)
        kept = record(
            model, tokenizer, found[:n], batch_size=batch_size, unverified=unverified, progress=True, **generation
        )
        kept.save(output)
    steps = kept.commit_step.amax(1).float().mean() + 1
    errors.print(f"{len(kept)} of {kept.facts['recorded']} runs kept, {steps:.1f} steps each", style="dim")
    written(output)


def _check_writable(file: Path) -> None:
    """Raises OSError where nothing could be written, before hours of decoding."""
    try:
        if file.exists():
            file.open("ab").close()
        file.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=file.parent).close()
    except OSError as error:
        raise OSError(f"{file} cannot be written: {error.strerror}.") from error


def _prompts(file: Path | None, tasks: str | None) -> list[Prompt] | None:
    if file is None:
        return None
    if tasks is not None:
        raise ValueError("The prompts are given both by --prompts and by --tasks: choose one.")
    return read_prompts(file)
