"""The model that comes with the package, and loading of any other."""

from pathlib import Path
from typing import Any

import torch
from huggingface_hub import constants
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils import CONFIG_NAME, cached_file

from .attaching import attach
from .mixin import DiffusionGenerationMixin
from .registry import require

NAME = "dllm-tiny"


def bundled_model(name: str = NAME) -> Path:
    """Returns the folder of the bundled model, laid out like a Hub repository.

    A wheel holds it as package data; an editable install reads `model_cards/` of the checkout.

    Args:
        name: of the model; its siblings, which other names stand for, are in a checkout only.

    Raises:
        FileNotFoundError: if neither place holds the model.
    """
    package = Path(__file__).parent
    places = [package / "model_cards" / name, package.parent / "model_cards" / name]
    for place in places:
        if (place / "config.json").is_file():
            return place
    raise FileNotFoundError(
        f"The model {name!r} is in none of {[str(place) for place in places]}. Reinstall dllm_generate "
        "(its siblings are in a clone only), or name a model: a local folder or a Hub id."
    )


def load(
    model: str | Path | None = None,
    *,
    dtype: str = "auto",
    device: str | None = None,
    trust_remote_code: bool = False,
) -> tuple[Any, PreTrainedTokenizerBase]:
    """Loads a model that can denoise, and its tokenizer.

    Args:
        model: a local folder or a Hub id; None is the bundled model.
        dtype: of the weights: `"auto"` (as saved), `"float32"`, `"bfloat16"` ...
        device: such as `"cuda"` or `"cpu"`, or `"auto"` to spread the weights over what there is. None is the first GPU
            if there is one, else the CPU.
        trust_remote_code: run model code from the Hub.

    Returns:
        The model in evaluation mode with our `generate`, and the tokenizer.

    Raises:
        FileNotFoundError: if the bundled model or a folder that is clearly meant as one is missing.
        OSError: if the model is neither a local folder nor to be had from the Hub.
        ValueError: for a dtype or a device that torch has not.

    Example:
        >>> model, tokenizer = load()
    """
    loaded, tokenizer = load_as_it_is(model, dtype=dtype, device=device, trust_remote_code=trust_remote_code)
    return loaded if isinstance(loaded, DiffusionGenerationMixin) else attach(loaded), tokenizer


def load_as_it_is(
    model: str | Path | None, *, dtype: str, device: str | None, trust_remote_code: bool
) -> tuple[Any, PreTrainedTokenizerBase]:
    """As [`load`], for a model that need not be able to denoise: it keeps its own `generate`."""
    known = dtype == "auto" or isinstance(getattr(torch, dtype, None), torch.dtype)
    require(known, "dtype", dtype, "'auto' or a dtype of torch, such as 'bfloat16'")
    _check_device(device)
    source = str(model or bundled_model())
    if source.startswith(("/", "./", "../", "~")):
        source = str(Path(source).expanduser())
        if not Path(source).is_dir():
            raise FileNotFoundError(f"There is no folder {source!r}.")
    _check_source(source)
    tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=trust_remote_code)
    loaded = AutoModelForCausalLM.from_pretrained(
        source, dtype=dtype, device_map=device or default_device(), trust_remote_code=trust_remote_code
    ).eval()
    return loaded, tokenizer


def _check_source(source: str) -> None:
    """Asks for one small file, before every part of the model is looked for in vain."""
    if Path(source).is_dir():
        return
    try:
        cached_file(source, CONFIG_NAME)
    except OSError as error:
        first_line = str(error).split("\n")[0]
        reason = "HF_HUB_OFFLINE is set, and it is not cached." if constants.HF_HUB_OFFLINE else first_line
        raise OSError(
            f"`model` is {source!r}, which is no local folder, nor to be had from the Hub: {reason}"
        ) from error


def _check_device(device: str | None) -> None:
    if device in (None, "auto"):
        return
    try:
        torch.empty(0, device=device)
    # Torch raises AssertionError for a backend that it was built without, RuntimeError for an unknown one.
    except (AssertionError, RuntimeError) as error:
        raise ValueError(
            f"`device` is {device!r}, which torch cannot use here: {str(error).splitlines()[0]}"
        ) from error


def default_device() -> str:
    """The first accelerator, or the CPU."""
    return str(torch.accelerator.current_accelerator()) if torch.accelerator.is_available() else "cpu"
