"""`dllm-generate inspect`."""

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from ..checkpoints import Report, inspect_checkpoint
from .common import columns_table, reported, write_json

MOST_NAMES = 10


def inspect_command(
    folder: Annotated[str, typer.Argument(help="A local folder with a model, or with a LoRA adapter.")],
    everything: Annotated[
        bool, typer.Option("--all", help="List every renamed, missing and unexpected tensor.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Tells what a checkpoint holds: family, layout, size, and whether every tensor of the model is there.

    Reads config files and headers, no weights. Exit status: 0; 1 if a tensor is missing or has another shape; 2 if the
    folder cannot be read.
    """
    with reported():
        report = inspect_checkpoint(folder)
    if as_json:
        content = report.to_dict()
        if not everything:
            del content["renamed"]
        write_json(content, None)
    else:
        show(report, everything=everything)
    raise typer.Exit(0 if report.complete else 1)


def show(report: Report, *, everything: bool) -> None:
    """Prints a report."""
    console = Console(highlight=False)
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column(overflow="fold")
    for name, value in (adapter_facts if report.kind == "adapter" else model_facts)(report).items():
        facts.add_row(name, value)
    console.print(facts)
    if report.rules:
        rules = columns_table("Renamed on loading", "rule", "tensors")
        for rule, count in report.rules.items():
            rules.add_row(rule, f"{count:,}")
        console.print(rules, markup=False)
    if everything:
        for name, targets in report.renamed.items():
            console.print(f"{name} -> {', '.join(targets)}", markup=False, soft_wrap=True)
    for title, names in faults(report).items():
        _list(console, title, names, everything)
    for note in [*report.notes, *([report.options_needed] if report.options_needed else [])]:
        console.print(f"Note: {note}", style="yellow", markup=False, soft_wrap=True)
    if report.layout is not None:
        console.print("Complete: every tensor of the model is there." if report.complete else "Not complete.")


def _list(console: Console, title: str, names: list[str], everything: bool) -> None:
    if not names:
        return
    console.print(f"{title}: {len(names):,}", style="bold red", markup=False)
    shown = names if everything else names[:MOST_NAMES]
    for name in shown:
        console.print(f"  {name}", markup=False, soft_wrap=True)
    if len(shown) < len(names):
        console.print(f"  ... and {len(names) - len(shown):,} more (--all)", markup=False)


def faults(report: Report) -> dict[str, list[str]]:
    """Title -> tensors."""
    shapes = [f"{name}: {stored}, but the model has {needed}" for name, (stored, needed) in report.mismatched.items()]
    return {"Missing": report.missing, "Unexpected": report.unexpected, "Of another shape": shapes}


def size(report: Report) -> dict[str, str]:
    """What the headers say of the weights."""
    files = f"{len(report.files)} file{'s' * (len(report.files) != 1)}{', with an index' * report.sharded}"
    kinds = [f"{name} ({counts['parameters']:,} in {counts['tensors']:,})" for name, counts in report.dtypes.items()]
    counted = f"{report.parameters:,} parameters in {report.tensors:,} tensors, {tqdm.format_sizeof(report.bytes, 'B')}"
    return {"Weights": f"{counted}, {files}", "Dtypes": ", ".join(kinds)}


def model_facts(report: Report) -> dict[str, str]:
    """What is known of a model."""
    layouts = {
        None: "not checked",
        "one": "published and native, which have the same names here",
        "mixed": "mixed: published names beside native ones",
    }
    facts = {
        "Model type": ", ".join([str(report.model_type), *report.architectures]),
        "Family": report.family or "unknown",
        "Layout": layouts.get(report.layout, report.layout or ""),
        **size(report),
        "Token ids": ", ".join(f"{name.removesuffix('_token_id')} {ids}" for name, ids in report.token_ids.items()),
    }
    if report.family is not None:
        blocks = "any block length" if report.block_length is None else f"blocks of {report.block_length}"
        shift = "position s is predicted at s - 1" if report.logits_shift else "every position predicts itself"
        facts |= {"Attention": f"{report.attention}, {blocks}; {shift}", "Presets": ", ".join(report.presets)}
    return facts


def adapter_facts(report: Report) -> dict[str, str]:
    """What is known of an adapter."""
    adapter: dict[str, Any] = report.adapter or {}
    targets = adapter["target_modules"]
    return {
        "Adapter": f"{adapter['peft_type']}, rank {adapter['r']}, alpha {adapter['lora_alpha']}",
        "Base model": str(adapter["base_model"]),
        "Targets": targets if isinstance(targets, str) else ", ".join(sorted(targets or ())),
        **(size(report) if report.files else {}),
    }
