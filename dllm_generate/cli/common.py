"""What several commands do."""

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from transformers.utils import logging

from ..bundled import load
from ..text import Reply

errors = Console(stderr=True, highlight=False)


@contextlib.contextmanager
def reported() -> Iterator[None]:
    """Turns errors that a user can mend (a value, a missing file, model or extra) into a line and exit status 2."""
    try:
        yield
    except (ValueError, OSError, ImportError) as error:
        errors.print("Error:", style="bold red", end=" ")
        errors.print(str(error), markup=False, soft_wrap=True)
        raise typer.Exit(2) from error


def load_model(options: dict[str, Any]) -> tuple[Any, Any]:
    """Loads the model of [`model_options`]; progress bars only on a terminal."""
    options = dict(options)
    threads = options.pop("threads")
    # The bundled model is too small for a second thread to help, and on a busy machine threads wait for each other.
    if threads is None and options["model"] is None:
        threads = 1
    if threads is not None:
        torch.set_num_threads(threads)
    if not sys.stderr.isatty():
        logging.disable_progress_bar()
    return load(**options)


def stats_line(reply: Reply) -> str:
    """Tokens, forwards, tokens per forward and tokens per second."""
    return (
        f"{reply.tokens} tokens, {reply.forwards} forwards, {reply.tokens_per_forward:.2f} tokens per forward, "
        f"{reply.tokens_per_second:.1f} tokens/s"
    )


def note_if_empty(reply: Reply) -> None:
    """Says on stderr that a reply has no text, which an empty line on stdout would not tell."""
    if not reply.text.strip():
        errors.print(f"The answer is empty: it holds no text (ended by {reply.finish_reason}).", style="yellow")


def as_json(reply: Reply) -> dict[str, Any]:
    """A reply with all its figures, as plain JSON values."""
    return {
        **vars(reply),
        "tokens_per_forward": reply.tokens_per_forward,
        "tokens_per_second": reply.tokens_per_second,
    }


def write_json(content: Any, path: Path | None) -> None:
    """Writes JSON to a file, or to stdout."""
    text = json.dumps(content, indent=1, ensure_ascii=False)
    if path is None:
        typer.echo(text)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")
        written(path)


def written(path: Path) -> None:
    """Says on stderr which file was written."""
    errors.print(f"Written: {path}", style="dim", markup=False, soft_wrap=True)


def columns_table(title: str, first: str, *columns: str) -> Table:
    """An empty table with a column of names and right-aligned columns of numbers."""
    made = Table(title=title)
    made.add_column(first, overflow="fold")
    for name in columns:
        made.add_column(name, justify="right")
    return made
