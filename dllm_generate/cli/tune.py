"""`dllm-generate tune`."""

import json
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from ..evaluation.harness import Config, label
from ..evaluation.plot import check_plot, plot
from ..evaluation.prompts import Prompt, read_prompts, task_prompts
from ..evaluation.trials import Trial, Tuning
from ..evaluation.tune import tune
from .common import columns_table, load_model, reported, write_json, written
from .evaluate import difference, machine, parse_config
from .options import model_options, problem_options, takes

RUN_FLAGS = ("preset", "decoder", "cache_policy", "schedule", "block_length", "steps", "threshold")
RUN_JSON_FLAGS = ("decoder_config", "policy_config", "schedule_config")
MOST_ROWS = 40


def search_options(
    loss: Annotated[float, typer.Option("--loss", help="Points that may be lost to one token per step.")] = 0.5,
    metric: Annotated[
        str, typer.Option("--metric", help="What is to be high: tpf (tokens per forward) or speed (tokens per second).")
    ] = "tpf",
    certain: Annotated[
        bool, typer.Option("--certain", help="Ask that the whole 95% interval of the loss stays within --loss.")
    ] = False,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Prompts decoded together.")] = 8,
    max_new_tokens: Annotated[
        int | None, typer.Option("--max-new-tokens", min=1, help="Default: what the problems need; 128 for a file.")
    ] = None,
    screen: Annotated[int, typer.Option("--screen", min=1, help="Prompts on which every candidate is tried.")] = 64,
    keep: Annotated[int, typer.Option("--keep", min=1, help="Candidates to measure on all prompts.")] = 8,
) -> dict[str, Any]:
    """Returns arguments of [`tune`]."""
    return dict(locals())


@takes(search=search_options, problems=problem_options, source=model_options)
def tune_command(
    prompts: Annotated[
        Path | None,
        typer.Option(
            "--prompts",
            "-p",
            help='A .jsonl file of {"prompt": ..., "answer": ...}, answers in all lines or in none; or a text file, '
            "a prompt per line. Default, with the bundled model: its held-out problems.",
        ),
    ] = None,
    n: Annotated[
        int | None,
        typer.Option("-n", min=1, help="Problems per task, default 100; or the first prompts of a file, default all."),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option("--config", "-c", help="A candidate, as for eval. Repeatable. Default: a grid of decoders."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for a generation_config.json with the winner.")
    ] = None,
    plot_file: Annotated[
        Path | None, typer.Option("--plot", help="Draw accuracy over tokens per forward: .png, .svg, .pdf ...")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures as JSON.")] = None,
    *,
    search: dict[str, Any],
    problems: dict[str, Any],
    source: dict[str, Any],
) -> None:
    """Finds the fastest way to decode your prompts that keeps the quality of one token per step.

    Judged by right answers where they are known, else by the share of texts that equal those of one token per step.
    The difference is paired, with its 95% interval. TPF: text tokens (no EOS, no pad) per forward.
    """
    with reported():
        if plot_file is not None:
            check_plot(plot_file)
        if output is not None and output.is_file():
            raise ValueError(f"`output` is {str(output)!r}, but must be a folder, not a file.")
        found = read(prompts, n, problems, bundled=source["model"] is None)
        candidates = [parse_config(text) for text in config] if config else None
        model, tokenizer = load_model(source)
        tuning = tune(model, tokenizer, found, candidates, **search, seed=problems["seed"], progress=True)
        show(tuning, source["model"])
        if output is not None:
            tuning.generation_config(model).save_pretrained(output)
            written(output / "generation_config.json")
        if plot_file is not None:
            plot(tuning, plot_file)
            written(plot_file)
    if json_file is not None:
        asked = {"prompts": None if prompts is None else str(prompts), "n": n, **problems, **search}
        write_json({"settings": {**source, **asked, **machine(model)}, **tuning.to_dict()}, json_file)


def read(file: Path | None, n: int | None, problems: dict[str, Any], *, bundled: bool) -> list[Prompt]:
    """Returns the prompts of a file, or problems of the bundled tasks.

    Raises:
        ValueError: for both, and for neither with a model that the tasks are foreign to; as [`read_prompts`] and
            [`task_prompts`].
    """
    if file is not None and problems["tasks"] is not None:
        raise ValueError("The prompts are given both by --prompts and by --tasks: choose one.")
    if file is not None:
        return read_prompts(file)[:n]
    if problems["tasks"] is None and not bundled:
        raise ValueError("Only the bundled model knows the bundled tasks: name your prompts by --prompts.")
    return task_prompts(n=n or 100, **problems)


def show(tuning: Tuning, model: str | None) -> None:
    """Prints the table, the winner and how to use it."""
    console = Console(highlight=False)
    console.print(trials_table(tuning))
    left = len(tuning.rejected)
    console.print(f"AUP of the front: {tuning.curves.overall:.1f}. Candidates that did not see all prompts: {left}.")
    for note in tuning.notes:
        console.print(f"Note: {note}", style="yellow", markup=False)
    config = tuning.winner.config
    arguments = ", ".join(f"{name}={value!r}" for name, value in config.items())
    lines = (
        f"Winner: {label(config)}",
        f"  {shell_command(config, model)}",
        f"  model.generate(**inputs, generation_config=DiffusionGenerationConfig({arguments}))",
    )
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)


def trials_table(tuning: Tuning) -> Table:
    """Renders what was measured on all prompts, by rising tokens per forward; of very many, the Pareto front."""
    title = f"{tuning.judged_by.capitalize()} over tokens per forward, {len(tuning.reference.right)} prompts"
    made = columns_table(title, "configuration (* Pareto front)", tuning.judged_by, "difference", "TPF", "tokens/s")
    front, shown = tuning.front, tuning.measured
    if len(shown) > MOST_ROWS:
        shown = [trial for trial in shown if _among(trial, [*front, tuning.winner, tuning.reference])]
        made.caption = f"{len(tuning.measured) - len(shown)} more in --json"
    for trial in sorted(shown, key=lambda trial: trial.point[0]):
        tpf, accuracy = trial.point
        name = label(trial.config) + " *" * _among(trial, front)
        change = "-" if trial is tuning.reference else difference(trial.difference)
        figures = (f"{100 * accuracy:.1f}", change, f"{tpf:.2f}", f"{trial.tokens_per_second:.0f}")
        made.add_row(name, *figures, style="bold green" if trial is tuning.winner else None)
    return made


def _among(trial: Trial, others: list[Trial]) -> bool:
    return any(trial is other for other in others)


def shell_command(config: Config, model: str | None) -> str:
    """The command that decodes a prompt with a configuration."""
    words = ["dllm-generate", "run", "PROMPT", *(["--model", model] if model else [])]
    for name, value in config.items():
        text = value if isinstance(value, str) else json.dumps(value)
        words += (
            [f"--{name.replace('_', '-')}", text]
            if name in (*RUN_FLAGS, *RUN_JSON_FLAGS)
            else ["--set", f"{name}={text}"]
        )
    return shlex.join(words)
