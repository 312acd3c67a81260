"""`dllm-generate eval`."""

import platform
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import transformers
import typer
from rich.console import Console
from rich.table import Table

from ..evaluation.harness import DEFAULT_CONFIGS, Config, Result, evaluate, label
from ..evaluation.statistics import Estimate
from ..evaluation.tasks import TASKS
from .common import columns_table, load_model, reported, write_json
from .options import model_options, parse_dict, parse_pair, takes


@takes(source=model_options)
def evaluate_command(
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config",
            "-c",
            help="Options of generate, as 'decoder=threshold,threshold=0.9,cache_policy=dual' or as a JSON object. "
            "Repeatable; the others are compared with the first. Default: "
            + "; ".join(label(config) for config in DEFAULT_CONFIGS)
            + ".",
        ),
    ] = None,
    tasks: Annotated[
        str | None, typer.Option("--tasks", help=f"Names with commas between, of: {', '.join(TASKS)}. Default: all.")
    ] = None,
    n: Annotated[int, typer.Option("-n", min=1, help="Held-out problems per task.")] = 100,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Problems decoded together.")] = 8,
    seed: Annotated[int, typer.Option("--seed", help="Of the problems, and of sampling.")] = 0,
    max_new_tokens: Annotated[
        int | None, typer.Option("--max-new-tokens", help="Default: room for the longest reference answer.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write all figures and answers as JSON.")
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON instead of the table.")] = False,
    *,
    source: dict[str, Any],
) -> None:
    """Measures accuracy, tokens per forward and speed on held-out problems.

    TPF: text tokens (no EOS, no pad) per forward. NFE: mean forwards per problem. Standard errors in brackets; the
    difference in accuracy to the first configuration is paired, with its 95% interval.
    """
    with reported():
        configs = [parse_config(text) for text in config] if config else list(DEFAULT_CONFIGS)
        room = {} if max_new_tokens is None else {"max_new_tokens": max_new_tokens}
        model, tokenizer = load_model(source)
        results = evaluate(
            model,
            tokenizer,
            [{**room, **options} for options in configs],
            tasks=[name.strip() for name in tasks.split(",")] if tasks else None,
            n=n,
            batch_size=batch_size,
            seed=seed,
            progress=True,
        )
    report = {
        "settings": {**source, "n": n, "batch_size": batch_size, "seed": seed, **machine(model)},
        "results": [result.to_dict() for result in results],
    }
    if json_output:
        write_json(report, None)
    else:
        Console().print(*tables(results), sep="\n")
    if output is not None:
        write_json(report, output)


def parse_config(text: str) -> Config:
    """Reads `name=value,name=value` or a JSON object."""
    if text.lstrip().startswith("{"):
        return parse_dict(text)
    # A comma inside a JSON value is not followed by a name and an equals sign.
    return dict(parse_pair(part) for part in re.split(r",\s*(?=[A-Za-z_-]+=)", text) if part.strip())


def machine(model: Any) -> dict[str, Any]:
    """What the figures depend on besides the options."""
    return {
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": str(model.device),
        "threads": torch.get_num_threads(),
        "processor": platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": sys.version.split()[0],
    }


def tables(results: Sequence[Result]) -> list[Table]:
    """Renders results: all problems, then the accuracy by task; one row per configuration."""
    tasks = list(results[0].tasks)
    title = f"{results[0].overall.n} held-out problems"
    whole = columns_table(title, "configuration", "accuracy", "difference", "TPF", "NFE", "tokens/s")
    by_task = columns_table("Accuracy by task", "configuration", *tasks)
    for result in results:
        score, name = result.overall, label(result.config)
        counts = (_plain(score.tokens_per_forward, 2), _plain(score.forwards, 1), f"{result.tokens_per_second:.1f}")
        whole.add_row(name, _percent(score.accuracy), _difference(result), *counts)
        by_task.add_row(name, *(_percent(task.accuracy) for task in result.tasks.values()))
    return [whole, by_task]


def _percent(estimate: Estimate) -> str:
    return f"{100 * estimate.value:.1f} ({100 * estimate.error:.1f})"


def _plain(estimate: Estimate, digits: int) -> str:
    return f"{estimate.value:.{digits}f} ({estimate.error:.{digits}f})"


def _difference(result: Result) -> str:
    if result.difference is None:
        return "-"
    value, low, high = (100 * x for x in (result.difference.value, result.difference.low, result.difference.high))
    return f"{value:+.1f} [{low:+.1f}, {high:+.1f}]"
