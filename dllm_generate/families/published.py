"""What native models of published checkpoints have in common."""

import warnings
from typing import Any

from torch import nn
from transformers import GenerationConfig


def take_sampling_values(values: dict[str, Any]) -> dict[str, Any]:
    """Moves sampling values out of the fields of a published config.json, with one warning.

    Args:
        values: fields that the config class does not have; what is taken is removed.

    Returns:
        Keywords of a generation config.
    """
    names = [name for name in vars(GenerationConfig()) if name in values and not name.startswith(("_", "output_"))]
    taken = {name: value for name in names if (value := values.pop(name)) is not None}
    if taken:
        warnings.warn(
            f"The model config holds sampling values ({', '.join(taken)}). They are moved to the generation config.",
            stacklevel=2,
        )
    return taken


def refuse_others(model: str, given: dict[str, Any], supported: dict[str, Any]) -> None:
    """Raises ValueError for a config that asks for what the native layers do not compute.

    Args:
        model: name for the message.
        given: fields of the config; None and missing ones ask for nothing.
        supported: the only value of each field.
    """
    for name, value in supported.items():
        if given.get(name) is not None and given[name] != value:
            raise ValueError(f"{model} with `{name}`={given[name]!r} is not supported, only {value!r} is.")


def take_published_names(config: Any, values: dict[str, Any]) -> None:
    """Sets the fields that arrive under a published name, which `config.attribute_map` translates.

    For the beginning of `__post_init__`: transformers sets them at its end, when other fields have been derived.
    """
    for published in config.attribute_map:
        value = values.pop(published, None)
        if value is not None:
            setattr(config, published, value)


def drop_ids_outside_vocabulary(config: Any, **published: int) -> None:
    """Sets ids to None that still are those of the published model, but lie outside a smaller vocabulary."""
    for name, token in published.items():
        if getattr(config, name) == token >= config.vocab_size:
            setattr(config, name, None)


def with_published_rope(saved: dict[str, Any], rope: dict[str, Any], *names: str) -> dict[str, Any]:
    """Writes plain RoPE the published way, as fields of the config; scaled RoPE stays in `rope_parameters` too.

    Args:
        saved: content of config.json.
        rope: the `rope_parameters`.
        names: the fields.
    """
    saved.update({name: rope[name] for name in names if name in rope})
    if rope.get("rope_type", "default") == "default":
        saved.pop("rope_parameters", None)
    return saved


class TrainedPadding(nn.Module):
    """Base of bodies whose padding token is a text token as well.

    These models pad answers with eos and learn their length from it; a padding row would get no gradient.
    """

    embed_tokens: nn.Embedding
    padding_idx: int | None

    def __init__(self, config: Any) -> None:
        super().__init__(config)  # type: ignore[call-arg]
        self.embed_tokens.padding_idx = self.padding_idx = None

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Embedding):
            module.padding_idx = None
        super()._init_weights(module)  # type: ignore[misc]
