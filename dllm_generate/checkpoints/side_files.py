"""What belongs to a checkpoint besides its weights."""

import copy
import json
import shutil
from pathlib import Path
from typing import Any

from transformers.utils import ADAPTER_CONFIG_NAME, CONFIG_NAME, GENERATION_CONFIG_NAME

from .files import PICKLES, read_json

_WRITTEN = (CONFIG_NAME, GENERATION_CONFIG_NAME, ADAPTER_CONFIG_NAME)
_WEIGHTS = (".safetensors", ".gguf", ".h5", ".msgpack", ".onnx", ".index.json", *PICKLES)


def write_side_files(source: Path, target: Path, model: Any, *, published: bool, dtype: str | None) -> None:
    """Writes both configs, and copies the tokenizer and other small files.

    Model code of the folder reads published names only, so it goes with those and is left out otherwise.

    Args:
        source, target: folders.
        model: on the meta device, made from the config of `source`.
        published: whether the weights have published names.
        dtype: of the weights, if it was changed.
    """
    config = copy.deepcopy(model.config)
    config.architectures = [type(model).__name__]
    if dtype is not None:
        config.dtype = dtype
    config.save_pretrained(target)
    _set_auto_map(target / CONFIG_NAME, read_json(source / CONFIG_NAME).get("auto_map") if published else None)
    _write_generation_config(source, target, model)
    for path in source.iterdir():
        if path.name in _WRITTEN or path.name.startswith(".") or path.name.endswith(_WEIGHTS):
            continue
        if path.is_file() and (published or path.suffix != ".py"):
            shutil.copyfile(path, target / path.name)
        elif path.name == "custom_generate" and path.is_dir():
            shutil.copytree(path, target / path.name)


def _set_auto_map(path: Path, auto_map: dict[str, Any] | None) -> None:
    values = read_json(path)
    values.pop("auto_map", None)
    if auto_map is not None:
        values["auto_map"] = auto_map
    path.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _write_generation_config(source: Path, target: Path, model: Any) -> None:
    """Copies the file; where there is none, or config.json holds sampling values, writes what loading would give."""
    if (source / GENERATION_CONFIG_NAME).is_file() and not getattr(model.config, "sampling_defaults", {}):
        shutil.copyfile(source / GENERATION_CONFIG_NAME, target / GENERATION_CONFIG_NAME)
        return
    unused = ("generation_config", "cache_dir", "proxies", "token")
    flags = ("from_auto_class", "from_pipeline", "force_download", "trust_remote_code")
    model.adjust_generation_fn(
        pretrained_model_name_or_path=str(source),
        local_files_only=True,
        revision="main",
        subfolder="",
        **dict.fromkeys(unused),
        **dict.fromkeys(flags, False),
    )
    model.generation_config.save_pretrained(target)
