"""`dllm-generate bench --headline`."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from ..evaluation.headline import Row, measure_headline
from ..evaluation.tasks import LONG_LEVEL, heldout_problems
from .common import columns_table, write_json
from .evaluate import difference, percent

OWN = 0
# There are few more held-out ones of this length.
TABLES = 64


def headline(n: int, runs: int, quick: bool, output: Path | None, json_output: bool) -> None:
    """Measures and shows the comparison of all systems; see [`measure_headline`]."""
    torch.set_num_threads(1)
    size: dict[str, Any] = {"forced": (64,), "runs": 1, "speed_problems": 1} if quick else {"runs": runs}
    tables = heldout_problems(["table"], n=2 if quick else min(n, TABLES), level=LONG_LEVEL)
    rows = measure_headline(heldout_problems(n=n), long_problems=tables, progress=True, **size)
    report = {"settings": {"n": n, **size}, "rows": [dataclasses.asdict(row) for row in rows]}
    if not json_output:
        Console().print(*headline_tables(rows), sep="\n")
    for path in [output] if output else [None] if json_output else []:
        write_json(report, path)


def headline_tables(rows: Sequence[Row]) -> list[Table]:
    """One table for answers that end by themselves, with the accuracies, and one for each forced length."""
    made = []
    for length in rows[0].speeds:
        columns = ("accuracy", "difference", "tables") if length == OWN else ()
        title = "Answers of their own length" if length == OWN else f"{length} new tokens, EOS banned"
        table = columns_table(title, "decoding", *columns, "tokens/s", "TPF", "NFE", "x plain", "x causal")
        for row in rows:
            change = "-" if row.difference is None else difference(row.difference)
            long = "-" if row.long_accuracy is None else percent(row.long_accuracy)
            speed = row.speeds[length]
            table.add_row(
                row.contender.name,
                *((percent(row.accuracy), change, long) if length == OWN else ()),
                f"{speed.tokens_per_second:.1f}",
                f"{speed.tokens_per_forward:.2f}",
                f"{speed.forwards:.1f}",
                f"{speed.to_plain:.2f}",
                f"{speed.to_causal:.2f}",
            )
        made.append(table)
    return made
