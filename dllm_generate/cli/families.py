"""`dllm-generate families`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from ..families.support import (
    FACTS,
    PARTS,
    Support,
    family_markdown,
    family_support,
    refreshed,
    support_markdown,
    support_table,
)
from .common import reported, written


def families(
    family: Annotated[str | None, typer.Argument(help="Of one family only. Default: all.")] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the Markdown of the documentation; of one family, presets too.")
    ] = False,
    update: Annotated[
        Path | None, typer.Option("--update", help="Refresh the generated parts of the Markdown files in this folder.")
    ] = None,
) -> None:
    """Lists the model families, and what works with each: decoders, schedules, cache policies."""
    with reported():
        if update is not None:
            for page in sorted(update.glob("*.md")):
                text = page.read_text(encoding="utf-8")
                if (now := refreshed(text)) != text:
                    page.write_text(now, encoding="utf-8")
                    written(page)
            return
        if markdown:
            typer.echo(support_markdown() if family is None else family_markdown(family))
            return
        for support in support_table() if family is None else [family_support(family)]:
            Console().print(_table(support))


def _table(support: Support) -> Table:
    row = {name: text.replace("`", "") for name, text in support.row().items()}
    table = Table(title=row["family"], title_justify="left", show_header=False)
    for name in dict.fromkeys([*FACTS, *PARTS]):
        if name != "family":
            table.add_row(name, row[name])
    return table
