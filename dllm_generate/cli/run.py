"""`dllm-generate run`."""

import sys
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from ..text import Conversation, Reply, reply, special_ids, user
from .common import as_json, errors, load_model, note_if_empty, reported, stats_line, write_json
from .live import LiveDrafts
from .options import generation_options, model_options, takes


@takes(generation=generation_options, source=model_options)
def run(
    prompt: Annotated[str | None, typer.Argument(help="The prompt, or - for stdin. Default: --file, or stdin.")] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="Read the prompt from a file.")] = None,
    system: Annotated[
        str | None, typer.Option("--system", help="System message, if the chat template has one.")
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print text and figures as JSON.")] = False,
    delay: Annotated[
        float, typer.Option("--delay", min=0, help="On a terminal, wait so many seconds after every step.")
    ] = 0.0,
    *,
    generation: dict[str, Any],
    source: dict[str, Any],
) -> None:
    """Answers one prompt.

    On a terminal the answer is shown while it is written; the figures go to stderr.
    """
    with reported():
        text = read_prompt(prompt, file)
        model, tokenizer = load_model(source)
        answer = answer_live(model, tokenizer, user(text, system), generation, Console(quiet=json_output), delay)
    if json_output:
        write_json(as_json(answer), None)
    else:
        typer.echo(answer.text)
        errors.print(stats_line(answer), style="dim", markup=False)
    note_if_empty(answer)


def read_prompt(prompt: str | None, file: Path | None) -> str:
    """Returns the prompt from the one place that holds it. Raises ValueError for two, and for an empty one."""
    if prompt is not None and file is not None:
        raise ValueError("The prompt is given both as an argument and by --file: choose one.")
    if prompt in (None, "-"):
        prompt = file.read_text(encoding="utf-8") if file is not None else sys.stdin.read()
        prompt = prompt.rstrip("\n")
    if not prompt.strip():
        raise ValueError("The prompt is empty.")
    return prompt


def answer_live(
    model: Any,
    tokenizer: Any,
    conversation: Conversation,
    generation: dict[str, Any],
    console: Console,
    delay: float = 0.0,
) -> Reply:
    """Generates one reply, with live drafts if the console is a terminal."""
    options = dict(generation)
    torch.manual_seed(options.pop("seed"))
    streamer = None
    if console.is_terminal and not console.quiet and not options.get("infill"):
        known = {name: options[name] for name in ("mask_token_id", "logits_shift", "attention") if name in options}
        streamer = LiveDrafts(tokenizer, special_ids(model, tokenizer, **known), console, delay)
    return reply(model, tokenizer, [conversation], streamer=streamer, **options)[0]
