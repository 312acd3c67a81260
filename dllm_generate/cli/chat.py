"""`dllm-generate chat`."""

import json
import sys
from typing import Annotated, Any

import typer
from rich.console import Console

from ..text import Conversation
from .common import as_json, errors, load_model, note_if_empty, reported, stats_line
from .options import generation_options, model_options, takes
from .run import answer_live

EXIT, RESET = "/exit", "/reset"


@takes(generation=generation_options, source=model_options)
def chat(
    system: Annotated[
        str | None, typer.Option("--system", help="System message, if the chat template has one.")
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object per turn.")] = False,
    *,
    generation: dict[str, Any],
    source: dict[str, Any],
) -> None:
    """Talks in turns; every turn sees those before.

    /reset forgets them, /exit ends. Piped input is one turn per line.
    """
    with reported():
        model, tokenizer = load_model(source)
    opening: Conversation = [] if system is None else [{"role": "system", "content": system}]
    history = list(opening)
    console = Console(quiet=json_output)
    while (line := _read_line()) not in (None, EXIT):
        if line == RESET:
            history = list(opening)
        elif line:
            history = _turn(model, tokenizer, [*history, {"role": "user", "content": line}], generation, console)


def _read_line() -> str | None:
    """The next turn without blanks around it; None at the end of the input."""
    if sys.stdin.isatty():
        errors.print("> ", style="bold cyan", end="")
    line = sys.stdin.readline()
    return line.strip() if line else None


def _turn(
    model: Any, tokenizer: Any, history: Conversation, generation: dict[str, Any], console: Console
) -> Conversation:
    """Prints the answer; returns the history with it, or without this turn if the model refused it."""
    try:
        answer = answer_live(model, tokenizer, history, generation, console)
    except ValueError as error:
        errors.print(f"Error: {error} ({RESET} forgets earlier turns.)", style="red", markup=False, soft_wrap=True)
        return history[:-1]
    typer.echo(json.dumps(as_json(answer), ensure_ascii=False) if console.quiet else answer.text)
    if not console.quiet:
        errors.print(stats_line(answer), style="dim", markup=False)
    note_if_empty(answer)
    return [*history, {"role": "assistant", "content": answer.text}]
