"""The command line `dllm-generate`."""

from typing import Annotated

import typer

from .. import __version__
from . import bench, chat, convert, evaluate, families, inspect, record, run, train, tune

app = typer.Typer(
    name="dllm-generate",
    help="Text generation with diffusion language models. Without --model, a small bundled one answers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dllm-generate {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None: ...


app.command("run")(run.run)
app.command("chat")(chat.chat)
app.command("eval")(evaluate.evaluate_command)
app.command("tune")(tune.tune_command)
app.command("train")(train.train_command)
app.command("record")(record.record_command)
app.command("bench")(bench.bench)
app.command("families")(families.families)
app.command("inspect")(inspect.inspect_command)
app.command("convert")(convert.convert_command)

__all__ = ["app"]
