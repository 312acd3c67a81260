"""The special tokens of a folder, as its config, generation config and tokenizer name them."""

import contextlib
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer
from transformers.tokenization_utils_base import (
    ADDED_TOKENS_FILE,
    FULL_TOKENIZER_FILE,
    SPECIAL_TOKENS_MAP_FILE,
    TOKENIZER_CONFIG_FILE,
)
from transformers.utils import CONFIG_NAME, GENERATION_CONFIG_NAME

from ..registry import is_int
from .files import read_json
from .models import value_of

IDS = ("mask_token_id", "eos_token_id", "pad_token_id")
_SIDE_FILES = (
    *(GENERATION_CONFIG_NAME, TOKENIZER_CONFIG_FILE, FULL_TOKENIZER_FILE),
    *(SPECIAL_TOKENS_MAP_FILE, ADDED_TOKENS_FILE),
)


def token_ids(folder: Path, config: Any, *, ask_tokenizer: bool) -> dict[str, Any]:
    """The ids in the order in which `generate` looks for them; None where nothing says.

    Args:
        folder: of the checkpoint.
        config: of the folder.
        ask_tokenizer: whether to load the tokenizer where neither config names a mask token.

    Raises:
        ValueError: for an id that is no int (of eos, also a list of ints), and a generation config or a file of the
            tokenizer that holds no JSON object.
    """
    side = {name: read_json(folder / name) for name in _SIDE_FILES if (folder / name).is_file()}
    saved, ids = side.get(GENERATION_CONFIG_NAME, {}), {}
    for name in IDS:
        file = CONFIG_NAME if saved.get(name) is None else GENERATION_CONFIG_NAME
        ids[name] = value_of(config, name) if file == CONFIG_NAME else saved[name]
        _check(folder, file, name, ids[name])
    if ask_tokenizer and ids["mask_token_id"] is None and any(folder.glob("tokenizer*")):
        # One that cannot be loaded, for whichever reason, names no mask.
        with contextlib.suppress(Exception):
            ids["mask_token_id"] = AutoTokenizer.from_pretrained(folder, trust_remote_code=False).mask_token_id
    return ids


def _check(folder: Path, file: str, name: str, value: Any) -> None:
    several = name == "eos_token_id"
    tokens = value if several and isinstance(value, list) else [value]
    if value is not None and not all(is_int(token) for token in tokens):
        allowed = f"an int{' or a list of ints' * several}"
        raise ValueError(f"{file} of {str(folder)!r}: `{name}` is {value!r}, but must be {allowed}.")
