"""The safetensors files of a folder, opened without reading a weight."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers.modeling_utils import str_to_torch_dtype
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from .deferred import Deferred

PICKLES = (".bin", ".pt", ".pth", ".ckpt")


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it holds no JSON object; names the file.
    """
    if not path.is_file():
        raise FileNotFoundError(f"There is no {path.name} in {str(path.parent)!r}.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{str(path)!r} is no valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{str(path)!r} holds no JSON object.")
    return content


def weight_files(folder: Path) -> list[str]:
    """Names of the safetensors files of a model, as `from_pretrained` would choose them.

    Raises:
        FileNotFoundError: if there are no weights, or a shard that the index names is missing.
        ValueError: for weights in another format, shards without an index, and an index that names none or no files.
    """
    if (folder / SAFE_WEIGHTS_NAME).is_file():
        return [SAFE_WEIGHTS_NAME]
    if (folder / SAFE_WEIGHTS_INDEX_NAME).is_file():
        weight_map = read_json(folder / SAFE_WEIGHTS_INDEX_NAME).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise ValueError(f"{str(folder / SAFE_WEIGHTS_INDEX_NAME)!r} has no `weight_map`.")
        for name, file in weight_map.items():
            if not isinstance(file, str):
                where = f"{SAFE_WEIGHTS_INDEX_NAME} of {str(folder)!r}"
                raise ValueError(f"{where}: the file of {name!r} is {file!r}, but must be a name.")
        names = sorted(set(weight_map.values()))
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise FileNotFoundError(
                f"{len(missing)} of {len(names)} shards that the index names are missing in {str(folder)!r}: "
                f"{', '.join(missing)}."
            )
        return names
    _refuse(folder)
    raise FileNotFoundError(f"There are no weights in {str(folder)!r}: no {SAFE_WEIGHTS_NAME} and no index of shards.")


def _refuse(folder: Path) -> None:
    shards = sorted(path.name for path in folder.glob("*-of-*.safetensors"))
    if shards:
        raise ValueError(
            f"{str(folder)!r} holds {shards[0]!r}, but no {SAFE_WEIGHTS_INDEX_NAME} that says which shards belong "
            "to the model."
        )
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLES and path.is_file())
    if pickles:
        raise ValueError(
            f"{str(folder)!r} holds {pickles[0]!r}, but weights must be safetensors: a pickle can run any code when "
            "it is read."
        )


class WeightFiles:
    """Opened safetensors files and their tensors. A context manager, which closes them.

    Args:
        folder: where they are.
        names: of the files.

    Attributes:
        names: of the files.
        tensors: name -> tensor, not yet read.
        in_file: name -> its file.

    Raises:
        ValueError: for a file that is cut off or no safetensors file, a tensor in two files, and an unknown dtype.
    """

    def __init__(self, folder: Path, names: list[str]):
        self.names = names
        self.tensors: dict[str, Deferred] = {}
        self.in_file: dict[str, str] = {}
        self._files = contextlib.ExitStack()
        self._open: dict[str, Any] = {}
        try:
            for name in names:
                self._add(folder / name)
        except BaseException:
            self.close()
            raise

    def _add(self, path: Path) -> None:
        try:
            file = self._files.enter_context(safe_open(os.fspath(path), framework="pt"))
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{str(path)!r} is damaged, cut off or no safetensors file: {error}") from error
        self._open[path.name] = file
        for name in file.keys():
            if name in self.in_file:
                raise ValueError(f"The tensor {name!r} is both in {self.in_file[name]!r} and in {path.name!r}.")
            piece = file.get_slice(name)
            dtype = str_to_torch_dtype.get(piece.get_dtype())
            if dtype is None:
                raise ValueError(f"The tensor {name!r} in {str(path)!r} has the unknown dtype {piece.get_dtype()!r}.")
            self.in_file[name] = path.name
            self.tensors[name] = self._deferred(name, piece.get_shape(), dtype)

    def _deferred(self, name: str, shape: list[int], dtype: torch.dtype) -> Deferred:
        return Deferred(shape, dtype, lambda start, stop: self.read(name, start, stop), frozenset([name]))

    def read(self, name: str, start: int, stop: int) -> torch.Tensor:
        """Reads a range of the first dimension of a tensor; nothing else of it is read."""
        file = self._open[self.in_file[name]]
        return file.get_slice(name)[start:stop] if self.tensors[name].dim() else file.get_tensor(name)

    def close(self) -> None:
        """Closes the files; what has not been read by then cannot be read any more."""
        self._files.close()

    def __enter__(self) -> "WeightFiles":
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()
