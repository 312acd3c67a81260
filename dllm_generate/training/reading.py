"""The files of recipes, and changes of single keys."""

import json
import re
from pathlib import Path
from typing import Any

import yaml

from ..registry import require


class _Loader(yaml.SafeLoader):
    """YAML 1.1 reads 1e-4 as text; here it is a number."""


_EXPONENT = re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$")
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+0123456789"))


def parse(file: Path) -> Any:
    """Reads a .yaml, .yml or .json file. Raises ValueError for another kind, and for text that is not of its kind."""
    require(file.suffix in (".yaml", ".yml", ".json"), "recipe", str(file), "a .yaml, .yml or .json file")
    try:
        text = file.read_text(encoding="utf-8")
        return json.loads(text) if file.suffix == ".json" else yaml.load(text, _Loader)  # noqa: S506
    except (ValueError, yaml.YAMLError) as error:
        raise ValueError(f"{file} cannot be read: {error}") from error


def put(values: dict[str, Any], path: str, value: Any) -> None:
    """Sets a value in nested dicts, in place; dots in `path` lead into them. Raises ValueError where there is none."""
    *parents, last = path.split(".")
    for name in parents:
        values = values.setdefault(name, {})
        require(isinstance(values, dict), path, value, f"a key of a dict, which `{name}` is not")
    values[last] = value
