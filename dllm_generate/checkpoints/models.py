"""The model that a folder is for: its config, its family, and its layers on the meta device."""

import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.utils import CONFIG_NAME

from ..families.base import Family, family_of
from .files import read_json


def existing_folder(folder: str | Path) -> Path:
    """Returns the folder as a path. Raises FileNotFoundError if there is none."""
    path = Path(folder).expanduser()
    if not path.is_dir():
        raise FileNotFoundError(f"`folder` is {str(folder)!r}, but must be a local folder.")
    return path


def read_config(folder: Path) -> Any:
    """The config of a folder, of the native class of its family; plain values for an unknown `model_type`.

    Raises:
        FileNotFoundError: without a config.json.
        ValueError: for a config.json that is no JSON, names no `model_type`, or that the native class refuses.
    """
    values = read_json(folder / CONFIG_NAME)
    model_type = values.get("model_type")
    if not isinstance(model_type, str):
        raise ValueError(f"{str(folder / CONFIG_NAME)!r} has the `model_type` {model_type!r}, but must name one.")
    if model_type not in CONFIG_MAPPING:
        return SimpleNamespace(**values)
    with warnings.catch_warnings():
        # They move to the generation config, which is shown and written, too.
        warnings.filterwarnings("ignore", message=".*holds sampling values")
        try:
            return AutoConfig.from_pretrained(folder, trust_remote_code=False)
        except StrictDataclassError as error:
            raise ValueError(f"{str(folder / CONFIG_NAME)!r} is no config of a {model_type}: {error}") from error


def build(config: Any) -> Any:
    """The model of a config on the meta device; None if transformers has no causal LM for it."""
    if isinstance(config, SimpleNamespace) or type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        return None
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def find_family(config: Any, model: Any) -> Family:
    """The family of a model, without regard to its mask id.

    Args:
        config: of the folder.
        model: on the meta device, or None.

    Raises:
        ValueError: for an unknown one; names the options that make it run.
    """
    if model is None:
        named = (getattr(config, "architectures", None) or [config.model_type])[0]
        model = type(named, (), {"config": config})()
    return family_of(model, {"mask_token_id": 0})
