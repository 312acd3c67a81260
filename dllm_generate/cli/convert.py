"""`dllm-generate convert`."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from tqdm import tqdm

from ..checkpoints import convert_checkpoint
from .common import errors, reported, written


def convert_command(
    folder: Annotated[str, typer.Argument(help="A local folder with safetensors weights of a known family.")],
    output: Annotated[Path, typer.Argument(help="A new folder.")],
    to: Annotated[
        str, typer.Option("--to", help="native: the names of our layers, with fused experts; or published.")
    ] = "native",
    dtype: Annotated[
        str | None, typer.Option("--dtype", help="float32, bfloat16 or float16. Default: that of every tensor.")
    ] = None,
    max_shard_size: Annotated[str, typer.Option("--max-shard-size", help="Largest file, such as 500MB.")] = "5GB",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Write into a folder that holds files; weights there are replaced.")
    ] = False,
) -> None:
    """Writes a checkpoint in its other layout, in another dtype or in files of another size.

    No model is loaded: the weights pass through memory in pieces of 64 MiB.
    """
    with reported(), tqdm(unit="B", unit_scale=True, desc="convert", disable=not sys.stderr.isatty()) as bar:

        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done)

        made = convert_checkpoint(
            folder, output, to=to, dtype=dtype, max_shard_size=max_shard_size, overwrite=overwrite, progress=progress
        )
    files = f"{len(made.files)} file{'s' * (len(made.files) != 1)}"
    errors.print(f"{made.family}: {made.source_layout} -> {made.layout}, {made.tensors} tensors, {files}", markup=False)
    written(output)
