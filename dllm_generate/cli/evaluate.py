"""`dllm-generate eval`."""

import dataclasses
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

from ..evaluation.curves import Curves
from ..evaluation.harness import DEFAULT_CONFIGS, Config, Result, evaluate, label
from ..evaluation.statistics import Estimate, Interval
from .common import columns_table, load_model, reported, write_json
from .options import model_options, parse_dict, parse_pair, problem_options, takes


@takes(problems=problem_options, source=model_options)
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
    configs_file: Annotated[
        Path | None,
        typer.Option("--configs", exists=True, dir_okay=False, help="File with one configuration per line, as for -c."),
    ] = None,
    n: Annotated[int, typer.Option("-n", min=1, help="Held-out problems per task.")] = 100,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Problems decoded together.")] = 8,
    max_new_tokens: Annotated[
        int | None, typer.Option("--max-new-tokens", help="Default: room for the longest reference answer.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write all figures and answers as JSON, after every configuration."),
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON instead of the table.")] = False,
    *,
    problems: dict[str, Any],
    source: dict[str, Any],
) -> None:
    """Measures accuracy, tokens per forward and speed on held-out problems.

    TPF: text tokens (no EOS, no pad) per forward. NFE: mean forwards per problem. Standard errors in brackets; the
    difference in accuracy to the first configuration is paired, with its 95% interval. AUP: accuracy under parallelism,
    the weighted area under accuracy (percent) over TPF. Every curve begins at the slowest row.
    """
    with reported():
        lines = configs_file.read_text().splitlines() if configs_file is not None else []
        given = [*(config or []), *(line for line in lines if line.strip() and not line.startswith("#"))]
        configs = [parse_config(text) for text in given] or list(DEFAULT_CONFIGS)
        room = {} if max_new_tokens is None else {"max_new_tokens": max_new_tokens}
        model, tokenizer = load_model(source)
        settings = {**source, "n": n, "batch_size": batch_size, **problems, **machine(model)}

        def report(results: Sequence[Result]) -> dict[str, Any]:
            curves = dataclasses.asdict(curves_of(configs[: len(results)], results))
            return {"settings": settings, "results": [result.to_dict() for result in results], "aup": curves}

        results = evaluate(
            model,
            tokenizer,
            [{**room, **options} for options in configs],
            n=n,
            batch_size=batch_size,
            progress=True,
            on_result=None if output is None else lambda results: write_json(report(results), output),
            **problems,
        )
    if json_output:
        write_json(report(results), None)
    else:
        Console().print(*tables(results), aup_table(curves_of(configs, results)), sep="\n")


def curves_of(configs: Sequence[Config], results: Sequence[Result]) -> Curves:
    """AUP of results; `configs` are those that were asked for, without what all have in common."""
    scores = [result.overall for result in results]
    return Curves.of(configs, [(score.tokens_per_forward.value, score.accuracy.value) for score in scores])


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
        counts = (plain(score.tokens_per_forward, 2), plain(score.forwards, 1), f"{result.tokens_per_second:.1f}")
        change = "-" if result.difference is None else difference(result.difference)
        whole.add_row(name, percent(score.accuracy), change, *counts)
        by_task.add_row(name, *(percent(task.accuracy) for task in result.tasks.values()))
    return [whole, by_task]


def aup_table(curves: Curves) -> Table:
    """Renders the AUP of every method, and that of the Pareto front."""
    made = columns_table("Accuracy under parallelism", "curve", "AUP")
    for name, area in curves.methods.items():
        made.add_row(name, f"{area:.1f}")
    made.add_row("best of all rows", f"{curves.overall:.1f}")
    return made


def percent(estimate: Estimate) -> str:
    """A share in percent, with its standard error."""
    return f"{100 * estimate.value:.1f} ({100 * estimate.error:.1f})"


def plain(estimate: Estimate, digits: int) -> str:
    """A value with its standard error."""
    return f"{estimate.value:.{digits}f} ({estimate.error:.{digits}f})"


def difference(interval: Interval) -> str:
    """A difference of shares in points, with its interval."""
    value, low, high = (100 * x for x in (interval.value, interval.low, interval.high))
    return f"{value:+.1f} [{low:+.1f}, {high:+.1f}]"
