"""Forwards that run compiled."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from .caches import POLICIES, CachePolicy
from .registry import require

if TYPE_CHECKING:
    from .backbone import Backbone
    from .config import DiffusionGenerationConfig

# Columns that the window of a compiled forward is a multiple of: as few shapes as that are compiled.
WIDTH_STEP = 16
# Shapes that one function may be compiled for; torch's own limit of 8 is below what a batch that shrinks has.
_SHAPES = 64


def compiled_body(
    backbone: "Backbone", policy: CachePolicy, config: "DiffusionGenerationConfig"
) -> Callable[..., Any] | None:
    """Returns the body, to be compiled when it is called first; None if `config` does not ask for it.

    Later calls of generate use again what was compiled, also those of other models of the same shapes.

    Raises:
        ValueError: where the shapes of forwards do not stay the same, and for a model that is run in parts.
    """
    wanted: Any = config.compile_config
    if wanted is None or config.disable_compile:
        return None
    storage = config.cache_implementation
    require(storage == "static", "cache_implementation", storage, "'static' with `compile_config`")
    keeping = [name for name, part in POLICIES.parts.items() if part.uses_cache]
    require(policy.uses_cache, "cache_policy", policy.name, f"one that keeps a cache with `compile_config`: {keeping}")
    if backbone.encodes:
        raise ValueError(f"`compile_config` is {wanted!r}, but must be None for a model with an encoder of its own.")
    compiled = torch.compile(_call, **wanted.to_dict())

    def call(**arguments: Any) -> Any:
        with torch._dynamo.config.patch(recompile_limit=_SHAPES):
            return compiled(backbone.body, **arguments)

    return call


def _call(body: Callable[..., Any], **arguments: Any) -> Any:
    """What is compiled: with the body as an argument, a copy of a model does not run the weights of the original."""
    return body(**arguments)
