"""Models without the mixin: give them our `generate`, or call it on them."""

import copy
import functools
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel

from .config import DiffusionGenerationConfig
from .mixin import DiffusionGenerationMixin, is_prepared, refuse_what_is_lost, sample_prepared
from .probe import check_model


def attach(model: Any) -> Any:
    """Gives a loaded model of any class our `generate`, in place.

    Args:
        model: a transformers model, or a `PeftModel` around one. If it belongs to no known family, set
            `mask_token_id`, `logits_shift` and `attention` in its generation config or in each call.

    Returns:
        The same model, whose class (that of the model inside a `PeftModel`) now derives from
        [`DiffusionGenerationMixin`] and from its old class.

    Raises:
        ValueError: if the model is no language model with a head, ignores attention masks, or is causal whatever they
            say; see [`check_model`].
    """
    inner = _without_wrapper(model)
    if not isinstance(inner, DiffusionGenerationMixin):
        check_model(inner)
    config = _with_mixin(inner).generation_config
    if inner is not model:
        model.generation_config = config
    return model


@functools.cache
def _attached_class(cls: type) -> type:
    # The class has no name that pickle could import, so an instance says how to make it again.
    reduce = lambda self: (_new_attached, (cls,), self.__dict__)
    return type(cls.__name__, (DiffusionGenerationMixin, cls), {"__module__": cls.__module__, "__reduce__": reduce})


def _new_attached(cls: type) -> Any:
    made: Any = _attached_class(cls)
    return made.__new__(made)


def _without_wrapper(model: Any) -> Any:
    """The model inside a `PeftModel`, whose layers the adapter has replaced; other models as they are.

    Raises:
        ValueError: for what is no model of transformers, and for an adapter that works on prompts.
    """
    if not hasattr(model, "get_base_model") and not isinstance(model, PreTrainedModel):
        raise ValueError(f"`model` is a {type(model).__name__}, but must be a loaded model of transformers.")
    if not hasattr(model, "get_base_model"):
        return model
    if model.active_peft_config.is_prompt_learning:
        raise ValueError(
            f"The adapter {model.active_peft_config.peft_type.value} puts virtual tokens in front of the prompt, which "
            "decoding would leave out: use one that changes layers, such as LoRA."
        )
    return model.get_base_model()


def _with_mixin(model: Any) -> Any:
    if not isinstance(model, DiffusionGenerationMixin):
        cls: Any = type(model)
        model.__class__ = _attached_class(cls)
    config = getattr(model, "generation_config", None) or GenerationConfig()
    model.generation_config = DiffusionGenerationConfig.upgrade(config)
    return model


def diffusion_generate(model: Any, inputs: torch.Tensor | None = None, **kwargs: Any):
    """Generates with any model, with or without the mixin.

    Call it as `diffusion_generate(model, **inputs, max_new_tokens=64, streamer=...)`, which takes everything that
    [`DiffusionGenerationMixin.generate`] takes, or pass it to a stock model as
    `model.generate(**inputs, generation_config=DiffusionGenerationConfig(...), custom_generate=diffusion_generate)`.

    Args:
        model: a transformers model; it is not changed.
        inputs: prompt ids `(B, P)` or `(P,)`.
        kwargs: as in `generate`.

    Raises:
        ValueError: as `generate`; and for a streamer, tokenizer or guidance that comes through `custom_generate`, where
            transformers drops or consumes it.
    """
    model = _without_wrapper(model)
    prepared = is_prepared(kwargs.get("generation_config"))
    if prepared:
        refuse_what_is_lost(**kwargs)
    if not isinstance(model, DiffusionGenerationMixin):
        check_model(model)
    view = _with_mixin(copy.copy(model))
    return sample_prepared(view, inputs, **kwargs) if prepared else view.generate(inputs, **kwargs)
