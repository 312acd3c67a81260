"""From one layout of a checkpoint to the other, a slab of a tensor at a time."""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import split_state_dict_into_shards_factory
from transformers.core_model_loading import build_glob_alternation, dot_natural_key
from transformers.utils import ADAPTER_CONFIG_NAME, CONFIG_NAME, SAFE_WEIGHTS_INDEX_NAME

from ..families.base import registered_families
from ..registry import is_int, require
from .deferred import Deferred, cast
from .faults import Native, to_published
from .files import WeightFiles, weight_files
from .models import build, existing_folder, find_family, read_config
from .names import to_native
from .side_files import write_side_files
from .token_ids import token_ids
from .writer import SLAB_BYTES, write_safetensors

LAYOUTS = ("native", "published")
DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Conversion:
    """What `convert_checkpoint` wrote.

    Attributes:
        folder: path.
        family: name of the family.
        source_layout, layout: before and after: `"published"`, `"native"`; before also `"mixed"`, or `"one"` where both
            have the same tensor names.
        files: names of the weight files.
        tensors, bytes: of all weights.
    """

    folder: str
    family: str
    source_layout: str
    layout: str
    files: tuple[str, ...]
    tensors: int
    bytes: int


def convert_checkpoint(
    folder: str | Path,
    output: str | Path,
    *,
    to: str = "native",
    dtype: str | None = None,
    max_shard_size: str | int = "5GB",
    overwrite: bool = False,
    slab_bytes: int = SLAB_BYTES,
    progress: Callable[[int, int], object] | None = None,
) -> Conversion:
    """Writes a checkpoint in another layout, dtype or shard size. Loads no model and at most a few slabs of weights.

    The names are those that `save_pretrained` writes: with `save_original_format=False` for `"native"`.

    Args:
        folder: a local folder with safetensors weights of a known family, in either layout.
        output: a folder that is made; it appears when all is written.
        to: `"native"` (the names of our layers, with fused experts) or `"published"`.
        dtype: `"float32"`, `"bfloat16"` or `"float16"` for floating-point weights; None keeps that of each. What the
            model always keeps in float32 is written so.
        max_shard_size: bytes, or such as `"5GB"`; a larger tensor gets a file of its own.
        overwrite: whether `output` may hold files. Weights of an earlier model there are removed.
        slab_bytes: how much is read at once; at least one entry of the first dimension.
        progress: is told the number of bytes of every slab, and of all.

    Raises:
        FileNotFoundError: without such a folder, a config.json, weights, or a shard that the index names.
        ValueError: for an option with another value, an output that is the folder itself or not empty, weights that
            are no safetensors, a damaged file, a config of which no model can be built, a generation config or
            tokenizer file that is no JSON object, an unknown family, one whose class is transformers' own and that has
            one layout, quantized weights, an adapter, and weights that are missing, left over, of another shape, or of
            dtypes that cannot be joined.
        OSError: if the disk has not room enough.

    Example:
        >>> convert_checkpoint("LLaDA-MoE-7B-A1B-Instruct", "fused", to="native", dtype="bfloat16")
    """
    require(to in LAYOUTS, "to", to, f"one of {', '.join(LAYOUTS)}")
    require(dtype is None or dtype in DTYPES, "dtype", dtype, f"one of {', '.join(DTYPES)}")
    require(is_int(slab_bytes) and slab_bytes > 0, "slab_bytes", slab_bytes, "an int > 0")
    require(isinstance(output, str | os.PathLike), "output", output, "the path of a folder")
    source, target = existing_folder(folder), Path(output).expanduser().absolute()
    _check_output(source, target, overwrite)
    shard_bytes = _parse_size(max_shard_size)
    model, family = _model(source)
    with WeightFiles(source, weight_files(source)) as weights:
        found = to_native(model, weights.tensors)
        _check_complete(source, found)
        tensors = {name: _cast_as_loaded(model, name, tensor, dtype) for name, tensor in found.tensors.items()}
        if to == "published":
            tensors = to_published(model, tensors)
        tensors = {name: tensors[name] for name in sorted(tensors, key=dot_natural_key)}
        size = sum(tensor.nbytes for tensor in tensors.values())
        above = next(parent for parent in target.parents if parent.is_dir())
        _check_room(above, size)
        report = (lambda done: progress(done, size)) if progress else None
        with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=above) as made:
            files = _write_weights(Path(made), tensors, shard_bytes, slab_bytes, report)
            write_side_files(source, Path(made), model, published=to == "published", dtype=dtype)
            _move(Path(made), target)
    return Conversion(str(target), family, found.layout, to, tuple(files), len(tensors), size)


def _check_output(source: Path, target: Path, overwrite: bool) -> None:
    allowed = "another folder than the input"
    require(target.resolve() != source.resolve(), "output", str(target), allowed)
    require(not target.is_file(), "output", str(target), "a folder, not a file")
    empty = not target.is_dir() or not any(target.iterdir())
    require(empty or overwrite, "output", str(target), "an empty folder, unless `overwrite` is given")


def _model(source: Path) -> tuple[Any, str]:
    """The model on the meta device, and the name of its family."""
    if (source / ADAPTER_CONFIG_NAME).is_file() and not (source / CONFIG_NAME).is_file():
        raise ValueError(f"`folder` is {str(source)!r}, which holds an adapter: merge it into its base model first.")
    config = read_config(source)
    if getattr(config, "quantization_config", None) is not None:
        raise ValueError(f"`folder` is {str(source)!r}, whose weights are quantized: only plain ones can be converted.")
    model = build(source, config)
    family = find_family(config, model).name
    native = {entry.family.name for entry in registered_families() if entry.model_class is not None}
    if family not in native:
        raise ValueError(
            f"`folder` is {str(source)!r}, of the family {family!r}, which has one layout only: there is nothing to "
            "convert."
        )
    if model is None:
        raise ValueError(f"`folder` is {str(source)!r}, whose `model_type` {config.model_type!r} has no native class.")
    token_ids(source, config, ask_tokenizer=False)
    return model, family


def _check_complete(source: Path, found: Native) -> None:
    faults = {"missing": found.missing, "unexpected": found.unexpected, "of another shape": list(found.mismatched)}
    faults["of a dtype that cannot be joined"] = list(found.unjoinable)
    told = [
        f"{len(names)} {fault} ({', '.join(names[:3])}{', ...' * (len(names) > 3)})"
        for fault, names in faults.items()
        if names
    ]
    if told:
        raise ValueError(
            f"The weights in {str(source)!r} are not those of the model that config.json describes: {'; '.join(told)}. "
            "`dllm-generate inspect --all` lists them."
        )


def _cast_as_loaded(model: Any, name: str, tensor: Deferred, dtype: str | None) -> Deferred:
    if dtype is None or not tensor.dtype.is_floating_point:
        return tensor
    wanted = getattr(torch, dtype)
    exact = model._get_dtype_plan(wanted)
    if exact and build_glob_alternation(list(exact))[0].search(name):
        wanted = torch.float32
    return tensor if tensor.dtype == wanted else cast(tensor, wanted)


def _parse_size(size: str | int) -> str | int:
    if isinstance(size, str):
        allowed = re.fullmatch(r"\s*\d+(\.\d+)?\s*[KMGT]B\s*", size, re.IGNORECASE) is not None
    else:
        allowed = is_int(size) and size > 0
    require(allowed, "max_shard_size", size, "such as '5GB' or '500MB', or bytes > 0")
    return size


def _check_room(folder: Path, size: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < size:
        raise OSError(f"{str(folder)!r} has {free / 1e9:.1f} GB free, but the weights take {size / 1e9:.1f} GB.")


def _write_weights(
    folder: Path, tensors: dict[str, Deferred], shard_bytes: str | int, slab_bytes: int, progress: Any
) -> list[str]:
    """Writes the files, with an index if there are several. Returns their names."""
    split = split_state_dict_into_shards_factory(
        tensors,
        get_storage_size=lambda tensor: tensor.nbytes,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=shard_bytes,
    )
    for file, names in split.filename_to_tensors.items():
        chosen = {name: tensors[name] for name in names}
        write_safetensors(folder / file, chosen, slab_bytes=slab_bytes, progress=progress)
    if split.is_sharded:
        parameters = sum(tensor.numel() for tensor in tensors.values())
        metadata = {"total_parameters": parameters, **split.metadata}
        index = {"metadata": metadata, "weight_map": split.tensor_to_filename}
        text = json.dumps(index, indent=2, sort_keys=True) + "\n"
        (folder / SAFE_WEIGHTS_INDEX_NAME).write_text(text, encoding="utf-8")
    return list(split.filename_to_tensors)


def _move(made: Path, target: Path) -> None:
    """Puts finished files in their place, where none of an earlier model may stay beside them."""
    target.mkdir(parents=True, exist_ok=True)
    for stale in [*target.glob("model*.safetensors"), target / SAFE_WEIGHTS_INDEX_NAME]:
        stale.unlink(missing_ok=True)
    for path in made.iterdir():
        if path.is_dir():
            shutil.rmtree(target / path.name, ignore_errors=True)
        os.replace(path, target / path.name)
