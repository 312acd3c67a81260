"""The model that a folder is for: its config, its family, and its layers on the meta device."""

import contextlib
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import transformers
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.utils import CONFIG_NAME

from ..families.base import Family, family_of, known_family, with_blocks_of
from ..registry import is_int, require
from .files import read_json

# Several times those of any known model: layers are built one by one, and a damaged number would never end.
MOST_LAYERS = 1000


def existing_folder(folder: str | Path) -> Path:
    """Returns the folder as a path. Raises FileNotFoundError if there is none, ValueError for no path."""
    require(isinstance(folder, str | os.PathLike), "folder", folder, "the path of a local folder")
    path = Path(folder).expanduser()
    if not path.is_dir():
        raise FileNotFoundError(f"`folder` is {str(folder)!r}, but must be a local folder.")
    return path


def read_config(folder: Path) -> Any:
    """The config of a folder, of the native class of its family; plain values for an unknown `model_type`.

    Raises:
        FileNotFoundError: without a config.json.
        ValueError: for a config.json that is no JSON, names no `model_type`, has `architectures` that are no names, too
            many layers, or values that the native class refuses.
    """
    values = read_json(folder / CONFIG_NAME)
    model_type = values.get("model_type")
    if not isinstance(model_type, str):
        raise ValueError(f"{str(folder / CONFIG_NAME)!r} has the `model_type` {model_type!r}, but must name one.")
    named = values.get("architectures")
    if named is not None and not (isinstance(named, list) and all(isinstance(name, str) for name in named)):
        raise ValueError(
            f"config.json of {str(folder)!r}: `architectures` is {named!r}, but must list names of classes."
        )
    for name in ("num_hidden_layers", "n_layers"):
        layers: Any = values.get(name)
        if is_int(layers) and layers > MOST_LAYERS:
            raise ValueError(
                f"config.json of {str(folder)!r}: `{name}` is {layers}, but must be at most {MOST_LAYERS}."
            )
    if model_type not in CONFIG_MAPPING:
        return SimpleNamespace(**values)
    with _named(folder), warnings.catch_warnings():
        # They move to the generation config, which is shown and written, too.
        warnings.filterwarnings("ignore", message=".*holds sampling values")
        return AutoConfig.from_pretrained(folder, trust_remote_code=False)


@contextlib.contextmanager
def _named(folder: Path) -> Iterator[None]:
    """Turns whatever classes raise at the values of a config.json into a ValueError that names the file."""
    try:
        yield
    except (OSError, ImportError):
        raise
    except Exception as error:
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        raise ValueError(f"config.json of {str(folder)!r}: {kind}{error}") from error


def build(folder: Path, config: Any) -> Any:
    """The model of a config on the meta device; None if transformers has no class for it.

    Args:
        folder: where the config is from.
        config: from `read_config`.

    Raises:
        ValueError: for values of which no model can be built.
    """
    if isinstance(config, SimpleNamespace):
        return None
    with _named(folder), torch.device("meta"):
        if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING:
            return AutoModelForCausalLM.from_config(config)
        own = getattr(transformers, (config.architectures or [""])[0], None)
        if isinstance(own, type) and issubclass(own, PreTrainedModel) and own.config_class is type(config):
            return own(config)
    return None


def value_of(config: Any, name: str) -> Any:
    """A field of a config, or of the config of the text model inside it; None where neither has it."""
    # Plain values of an unknown model have no such method, and a few models have two text models.
    with contextlib.suppress(AttributeError, ValueError):
        if getattr(config, name, None) is None:
            return getattr(config.get_text_config(), name, None)
    return getattr(config, name, None)


def find_family(config: Any, model: Any) -> Family:
    """The family of a model, with the block length that its config states, and without a mask id.

    Args:
        config: of the folder.
        model: on the meta device, or None.

    Raises:
        ValueError: for an unknown one; names the options that make it run.
    """
    if model is None:
        named = (getattr(config, "architectures", None) or [config.model_type])[0]
        model = type(named, (), {"config": config})()
    family = known_family(model)
    return family_of(model) if family is None else with_blocks_of(model.config, family)
