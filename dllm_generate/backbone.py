"""The model as the loop sees it: a body that gives hidden states, and a head."""

import copy
import dataclasses
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn
from transformers.utils import ModelOutput

from .attention import attention_mask, check_backend, near
from .caches import DiffusionCache
from .decoders import DECODERS
from .families.adapters import check_targets
from .traits import Traits, traits_of

if TYPE_CHECKING:
    from .config import DiffusionGenerationConfig
    from .families import Family
    from .schedules import Blocks


class Backbone:
    """Splits a language model into body and head, so that logits are computed for the rows that need them only.

    Args:
        model: a transformers model.
        traits: how to call it. Unset, what [`check_model`] found, or the defaults.

    Raises:
        ValueError: if the model has no parts to decode with, an attention backend that takes no 4-D mask, or an adapter
            of which a part was not loaded.

    Attributes:
        encodes: the model reads finished text in a forward of its own, see `EncodingBackbone`.
        compiled: the body, for windows of few different widths; None if nothing is compiled.
    """

    encodes: ClassVar[bool] = False
    compiled: Callable[..., Any] | None = None

    def __init__(self, model: Any, traits: Traits | None = None):
        self.traits = traits_of(model) if traits is None else traits
        headless = self.traits.head != "whole" and model.get_output_embeddings() is None
        if model.config.is_encoder_decoder or headless:
            raise ValueError(f"{type(model).__name__} has no output embeddings on top of a base model to decode with.")
        self.name = type(model).__name__
        self.body, self.head = _split(model, self.traits)
        self.implementation = model.config._attn_implementation
        self.dtype = model.dtype
        self._extras = self._fixed_arguments()
        check_backend(self.implementation)
        check_targets(model)

    def _fixed_arguments(self) -> dict[str, Any]:
        parameters = inspect.signature(self.body.forward).parameters
        wanted = ["input_ids", "attention_mask"]
        wanted += [] if self.traits.own_positions else ["position_ids"]
        wanted += ["cache"] if self.traits.takes_cache else []
        anything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        missing = [argument for argument in wanted if argument not in parameters]
        if missing and not anything:
            raise ValueError(f"{self.name} cannot be decoded: its base model does not take {missing}.")
        if self.traits.takes_cache:
            return {"return_dict": True}
        # A body that passes on what it does not know would hand these to its layers.
        return {key: value for key, value in (("return_dict", True), ("use_cache", False)) if key in parameters}

    def hidden_states(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        visible: torch.Tensor,
        cache: DiffusionCache | None,
        inputs_embeds: torch.Tensor | None = None,
        *,
        steady: bool = False,
    ) -> torch.Tensor:
        """Runs the body.

        Args:
            input_ids, position_ids: `(n, W)`.
            visible: `(n, S)` bool, real and visible keys; `(n, W, S)` where queries differ.
            cache: aimed at the window, or None.
            inputs_embeds: `(n, W, d)`, what the body is fed instead of the ids.
            steady: whether windows of this width come again.

        Returns:
            `(n, W, d)`; logits `(n, W, V)` of a model whose head cannot be told from its body.
        """
        arguments = dict(self._extras)
        if inputs_embeds is None:
            arguments["input_ids"] = input_ids
        else:
            arguments["inputs_embeds"] = inputs_embeds
        arguments["attention_mask"] = self._mask(visible, position_ids)
        traits = self.traits
        if not traits.own_positions:
            arguments["position_ids"] = position_ids + traits.first_position if traits.first_position else position_ids
        if traits.takes_cache:
            arguments.update(cache=cache, use_cache=cache is not None)
        # The last layer of a model that is spread over devices may lie on another one than the canvas.
        body = self.compiled if steady and self.compiled is not None else self.body
        return _first(body(**arguments)).to(position_ids.device)

    def validate(self, family: "Family", config: "DiffusionGenerationConfig") -> None:
        """Raises ValueError where the model cannot serve `family` or `config`."""
        if self.traits.per_query:
            return
        fault = f"{self.name} takes no mask and no positions of its own for every query"
        if family.attention == "block_causal":
            raise ValueError(f"`attention` is {family.attention!r}, but must be 'bidirectional': {fault}.")
        decoder = config.build(DECODERS)
        if decoder.verifies:
            raise ValueError(f"`decoder` is {decoder.name!r}, which verifies what it wrote, but {fault}.")

    def select(self, rows: torch.Tensor) -> "Backbone":
        """Goes on with `rows` `(n,)` of the batch. One that keeps nothing of a row is the same for all."""
        return self

    def absorb(self, scores: torch.Tensor, temperature: torch.Tensor | None, blocks: "Blocks") -> None:
        """Takes in the scores `(B * slots, k, V)` of a step, for models that are fed their own predictions."""

    def passes(self, ran: torch.Tensor, lo: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        """Forwards `(B,)` that the step took of each row: one if it `ran` (bool `(B,)`).

        Args:
            lo, start: `(B,)` first column of the window, and of the blocks in work.
        """
        return ran

    def scores(self, hidden: torch.Tensor) -> torch.Tensor:
        """Runs the head: `(n, k, d)` to `(n, k, V)`."""
        return self.head(hidden).to(hidden.device)

    def _mask(self, visible: torch.Tensor, position_ids: torch.Tensor) -> Any:
        traits = self.traits
        if traits.masks != "grid":
            return visible if traits.masks == "flags" else visible.long()
        full = attention_mask(visible, implementation=self.implementation, dtype=self.dtype)
        if not traits.window:
            return full
        sliding = full
        if visible.shape[-1] > traits.window:
            # Such a model is decoded without a cache, so that the keys are the queries.
            close = near(visible, position_ids, traits.window)
            sliding = attention_mask(close, implementation=self.implementation, dtype=self.dtype)
        return {"full_attention": full, "sliding_attention": sliding} if traits.layered else sliding


def body_of(model: Any) -> Any:
    """The part of a model that gives hidden states. Some encoders call their output layer the decoder."""
    body = model.get_decoder()
    return model.base_model if body is model.get_output_embeddings() else body


def _split(model: Any, traits: Traits) -> tuple[Any, Callable[[torch.Tensor], torch.Tensor]]:
    if traits.head == "whole":
        return model, nn.Identity()
    body = body_of(model)
    if body is model:
        raise ValueError(f"{type(model).__name__} has no base model below its output embeddings.")
    return body, model.get_output_embeddings() if traits.head == "embeddings" else _Rest(model, body)


@dataclasses.dataclass
class _Output(ModelOutput):
    """What heads take from the output of a body, or hand on."""

    last_hidden_state: torch.Tensor | None = None
    cache: Any = None
    hidden_states: Any = None
    attentions: Any = None
    cross_attentions: Any = None
    router_logits: Any = None


class _Given(nn.Module):
    """Stands for a body, and gives the hidden states that are put into it."""

    hidden: torch.Tensor | None = None

    def forward(self, *args: Any, **kwargs: Any) -> _Output:
        return _Output(last_hidden_state=self.hidden)


class _Rest:
    """All that the forward of a model does behind its body: the forward itself, with the body taken out.

    Raises:
        ValueError: if the body is not a direct part of the model.
    """

    def __init__(self, model: Any, body: Any):
        names = [name for name, part in model.named_children() if part is body]
        if not names:
            raise ValueError(f"The body of {type(model).__name__} is not a direct part of it.")
        self.given = _Given()
        # A shallow copy with a list of parts of its own: the model itself may be running in another thread.
        self.model = copy.copy(model)
        self.model.__dict__["_modules"] = {**model._modules, names[0]: self.given}

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        self.given.hidden = hidden
        # That of the class: one that was wrapped for offloading would run the original.
        output = type(self.model).forward(self.model, None)
        self.given.hidden = None
        return _first(output)


def _first(output: Any) -> torch.Tensor:
    """Hidden states or logits, in whatever form a forward returns them."""
    if isinstance(output, torch.Tensor):
        return output
    for name in ("last_hidden_state", "logits"):
        if getattr(output, name, None) is not None:
            return getattr(output, name)
    return output[0]
