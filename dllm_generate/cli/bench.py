"""`dllm-generate bench`."""

import dataclasses
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from ..evaluation.bench import (
    Overhead,
    Speed,
    fixed_environment,
    larger_model,
    measure_overhead,
    measure_speed,
    overhead_configs,
)
from ..evaluation.harness import label
from ..evaluation.memory import StepMemory, measure_memory
from .common import columns_table, load_model, reported, write_json
from .evaluate import machine
from .headline import headline as compare

PARTS = ("overhead", "memory", "speed")


def bench(
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Local folder or Hub id. Default: the bundled model.")
    ] = None,
    only: Annotated[
        str | None, typer.Option("--only", help=f"Measure one of: {', '.join(PARTS)}. Default: all.")
    ] = None,
    decoders: Annotated[
        str | None, typer.Option("--decoders", help="For overhead and memory: names with commas between.")
    ] = None,
    larger: Annotated[
        bool, typer.Option(help="Measure the overhead of a random LLaDA of 167 million parameters as well.")
    ] = True,
    headline: Annotated[
        bool, typer.Option("--headline", help="Compare all systems, and a causal model of the same size, instead.")
    ] = False,
    n: Annotated[int, typer.Option("-n", min=1, help="For --headline: problems per task, for the accuracy.")] = 200,
    runs: Annotated[int, typer.Option("--runs", min=1, help="Repetitions; medians are reported.")] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="One run, 64 new tokens: a glance, no measurement.")] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write all figures as JSON.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Measures the loop: its overhead, the memory of a step, and speed. On the CPU, one thread, float32.

    Overhead: CPU time of generate over the CPU time of its own forwards (body and head) in the same call; batch 1,
    prompt 64, 256 new tokens, block 32. Memory: peak of a step beyond forward, keys and values, and mask. Headline:
    accuracy, tokens per second, per forward, and the ratios to plain decoding and to a causal model, in bfloat16.
    """
    with reported():
        if only is not None and only not in PARTS:
            raise ValueError(f"`only` is {only!r}, but must be one of {list(PARTS)}.")
        environment = fixed_environment()
        if environment is not None:
            # The allocator and OpenMP read their settings once, when a process starts.
            os.execve(sys.executable, [sys.executable, "-m", "dllm_generate.cli", *sys.argv[1:]], environment)
        if headline:
            return compare(n, runs, quick, output, json_output)
        loaded, tokenizer = load_model({"model": model, "dtype": "float32", "device": "cpu", "threads": 1})
        names = [name.strip() for name in decoders.split(",")] if decoders else None
        parts = [only] if only else PARTS
        report: dict[str, Any] = {"settings": {"model": model, "runs": runs, "quick": quick, **machine(loaded)}}
        if "overhead" in parts:
            report["overhead"] = _overheads([loaded, *([larger_model()] if larger else [])], names, runs, quick)
        if "memory" in parts:
            report["memory"] = measure_memory(names, progress=True)
        if "speed" in parts:
            report["speed"] = measure_speed(loaded, tokenizer, runs=1 if quick else runs, progress=True)
    if not json_output:
        _show(report)
    plain = _plain(report)
    for path in [output] if output else [None] if json_output else []:
        write_json(plain, path)


def _overheads(
    models: Sequence[Any], decoders: Sequence[str] | None, runs: int, quick: bool
) -> dict[str, list[Overhead]]:
    size: dict[str, Any] = {"runs": 1, "new_tokens": 64} if quick else {"runs": runs}
    named, configs = zip(("given", "larger"), models), overhead_configs(decoders)
    return {name: measure_overhead(model, configs, progress=True, **size) for name, model in named}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, dict):
        return {name: _plain(entry) for name, entry in value.items()}
    return [_plain(entry) for entry in value] if isinstance(value, (list, tuple)) else value


def _show(report: dict[str, Any]) -> None:
    console = Console()
    for name, results in report.get("overhead", {}).items():
        console.print(_overhead_table(name, results))
    if "memory" in report:
        console.print(_memory_table(report["memory"]))
    if "speed" in report:
        console.print(_speed_table(report["speed"]))


def _overhead_table(name: str, results: Sequence[Overhead]) -> Table:
    made = columns_table(
        f"Overhead, {name} model", "configuration", "call / forwards", "forwards", "forward ms", "loop ms"
    )
    for r in results:
        made.add_row(label(r.config), f"{r.ratio:.3f}", str(r.forwards), f"{r.forward_ms:.2f}", f"{r.loop_ms:.2f}")
    return made


def _memory_table(results: Sequence[StepMemory]) -> Table:
    lengths = sorted({r.prompt_length for r in results})
    made = columns_table(
        "Peak extra memory of a step, KiB", "decoder, policy", *(f"prompt {length}" for length in lengths)
    )
    peaks = {(r.decoder, r.cache_policy, r.prompt_length): r.peak_bytes for r in results}
    for decoder, policy in dict.fromkeys((r.decoder, r.cache_policy) for r in results):
        made.add_row(f"{decoder}, {policy}", *(f"{peaks[decoder, policy, length] / 1024:.1f}" for length in lengths))
    return made


def _speed_table(results: Sequence[Speed]) -> Table:
    made = columns_table("Speed, batch 1", "configuration", "tokens/s", "ratio", "TPF")
    for r in results:
        made.add_row(label(r.config), f"{r.tokens_per_second:.1f}", f"{r.ratio:.2f}", f"{r.tokens_per_forward:.2f}")
    return made
