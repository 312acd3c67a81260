"""The command line `dllm-generate`."""

import typer

from . import bench, chat, evaluate, run, tune

app = typer.Typer(
    name="dllm-generate",
    help="Text generation with diffusion language models. Without --model, a small bundled one answers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(run.run)
app.command("chat")(chat.chat)
app.command("eval")(evaluate.evaluate_command)
app.command("tune")(tune.tune_command)
app.command("bench")(bench.bench)

__all__ = ["app"]
