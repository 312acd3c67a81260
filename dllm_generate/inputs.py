"""Checks and normalises the prompt before transformers sees it."""

from typing import Any

import torch
from transformers import GenerationConfig

from .families import known_family
from .options import KINDS, OWN_FIELDS, refuse_autoregressive, refuse_unknown
from .registry import require

# What a model may take besides ids and a mask.
_OWN = (
    *("inputs_embeds", "position_ids", "past_key_values", "cache", "mm_encoder_outputs"),
    *("decoder_input_ids", "decoder_attention_mask", "decoder_position_ids"),
    *("self_conditioning_logits", "self_conditioning_mask"),
)


def check_arguments(assistant_model: Any, generation_config: Any, kwargs: dict[str, Any]) -> None:
    """Raises ValueError for arguments of a call that must not reach transformers."""
    if assistant_model is not None:
        raise ValueError(
            f"`assistant_model` is a {type(assistant_model).__name__}, but diffusion decoding does not support "
            "assisted generation: leave it None."
        )
    known = generation_config is None or isinstance(generation_config, GenerationConfig)
    require(known, "generation_config", type(generation_config).__name__, "a DiffusionGenerationConfig or None")
    refuse_autoregressive(kwargs)
    homes = {key for kind in KINDS for key in kind.homes()} - set(OWN_FIELDS)
    refuse_unknown(homes & set(kwargs))


def check_inputs(
    model: Any, inputs: torch.Tensor | None, generation_config: GenerationConfig | None, kwargs: dict[str, Any]
) -> tuple[torch.Tensor, dict[str, Any]]:
    """Returns prompt ids `(B, P)` and the other arguments, with an `attention_mask` of the same shape.

    Without a mask, runs of the pad token at either end of a row are taken for padding, as transformers does; pad ids in
    between belong to the prompt.

    Raises:
        ValueError: a missing, empty or wrongly shaped prompt or mask, or embeddings instead of ids.
    """
    kwargs = dict(kwargs)
    for name in _OWN:
        if kwargs.get(name) is not None:
            raise ValueError(
                f"`{name}` is given, but diffusion decoding makes its own from `input_ids`: leave it None."
            )
    _check_is_text(kwargs.get("pixel_values"), kwargs.pop("mm_token_type_ids", None))
    if inputs is not None and kwargs.get("input_ids") is not None:
        raise ValueError("The prompt is given both as `inputs` and as `input_ids`: pass it once.")
    ids = kwargs.pop("input_ids", None) if inputs is None else inputs
    if not isinstance(ids, torch.Tensor):
        raise ValueError(f"`input_ids` is a {type(ids).__name__}, but must be a LongTensor of shape (batch, length).")
    ids = _two_dimensional(ids)
    mask = kwargs.pop("attention_mask", None)
    if mask is None:
        mask = _inferred(ids, *_special_ids(model, generation_config, kwargs))
    else:
        require(isinstance(mask, torch.Tensor), "attention_mask", type(mask).__name__, "a tensor")
        mask = mask[None] if mask.dim() == 1 else mask
        require(
            tuple(mask.shape) == tuple(ids.shape), "attention_mask", tuple(mask.shape), f"of shape {tuple(ids.shape)}"
        )
    if not bool((mask != 0).any(1).all()):
        raise ValueError("`attention_mask` leaves a row without any token, but every prompt must have at least one.")
    return ids, {**kwargs, "attention_mask": mask}


def with_mask_of_tokenizer(model: Any, generation_config: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Names the tokenizer's mask id where neither a config nor the model has one: transformers keeps it to itself."""
    named = [kwargs.get("mask_token_id")]
    named += [getattr(c, "mask_token_id", None) for c in (generation_config, model.generation_config, model.config)]
    family = known_family(model)
    if family is not None and family.noise != "mask":
        return kwargs
    mask = getattr(kwargs.get("tokenizer"), "mask_token_id", None)
    return {**kwargs, "mask_token_id": mask} if named == [None] * 4 and mask is not None else kwargs


def _check_is_text(pixels: Any, types: torch.Tensor | None) -> None:
    """Raises ValueError for images. Processors name the type of every token also where all are text."""
    name = "pixel_values" if pixels is not None else "mm_token_type_ids"
    if pixels is not None or (types is not None and bool((types != 0).any())):
        raise ValueError(f"`{name}` tells of images in the prompt, but only text is supported.")


def _two_dimensional(ids: torch.Tensor) -> torch.Tensor:
    shape = tuple(ids.shape)
    require(ids.dim() in (1, 2), "input_ids", shape, "of shape (batch, length) or (length,)")
    require(ids.numel() > 0, "input_ids", shape, "a prompt of at least one token")
    integral = not (ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool)
    require(integral, "input_ids", str(ids.dtype), "of an integer dtype")
    return (ids[None] if ids.dim() == 1 else ids).long()


def _special_ids(model: Any, generation_config: GenerationConfig | None, kwargs: dict[str, Any]) -> list[Any]:
    sources = (
        kwargs.get,
        lambda n: getattr(generation_config, n, None),
        lambda n: getattr(model.generation_config, n, None),
    )
    return [next((v for s in sources if (v := s(n)) is not None), None) for n in ("pad_token_id", "eos_token_id")]


def _inferred(ids: torch.Tensor, pad: int | None, eos: int | list[int] | None) -> torch.Tensor:
    ends = eos if isinstance(eos, (list, tuple)) else [eos]
    if pad is None or pad in ends:
        return torch.ones_like(ids)
    text = (ids != pad).long()
    # A cell is inside if there is text both at or before it and at or behind it.
    inside = (text.cumsum(1) > 0) & (text.flip(1).cumsum(1).flip(1) > 0)
    return torch.where(inside.any(1, keepdim=True), inside, True).long()
