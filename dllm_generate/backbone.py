"""The model as the loop sees it: a body that gives hidden states, and a head."""

import inspect
from typing import Any

import torch

from .attention import attention_mask, check_backend
from .caches import DiffusionCache


class Backbone:
    """Splits a language model into body and head, so that logits are computed for the rows that need them only.

    Args:
        model: a transformers model with a decoder (or base model) and output embeddings.

    Raises:
        ValueError: if the model has no such parts, or an attention backend that takes no 4-D mask.
    """

    def __init__(self, model: Any):
        self.body, self.head = model.get_decoder(), model.get_output_embeddings()
        if self.head is None or self.body is model or model.config.is_encoder_decoder:
            raise ValueError(f"{type(model).__name__} has no output embeddings on top of a base model to decode with.")
        takes = inspect.signature(self.body.forward).parameters
        anything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in takes.values())
        missing = [name for name in ("input_ids", "position_ids", "attention_mask", "cache") if name not in takes]
        if missing and not anything:
            raise ValueError(f"{type(model).__name__} cannot be decoded: its base model does not take {missing}.")
        self.implementation = model.config._attn_implementation
        self.dtype = model.dtype
        check_backend(self.implementation)

    def hidden_states(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        visible: torch.Tensor,
        cache: DiffusionCache | None,
        inputs_embeds: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Runs the body.

        Args:
            input_ids, position_ids: `(n, W)`.
            visible: `(n, S)` bool, real and visible keys; `(n, W, S)` where queries differ.
            cache: aimed at the window, or None.
            inputs_embeds: `(n, W, d)`, what the body is fed instead of the ids.

        Returns:
            `(n, W, d)`.
        """
        fed = {"input_ids": input_ids} if inputs_embeds is None else {"inputs_embeds": inputs_embeds}
        output = self.body(
            **fed,
            position_ids=position_ids,
            attention_mask=attention_mask(visible, implementation=self.implementation, dtype=self.dtype),
            cache=cache,
            use_cache=cache is not None,
            return_dict=True,
        )
        return output.last_hidden_state

    def scores(self, hidden: torch.Tensor) -> torch.Tensor:
        """Runs the head: `(n, k, d)` to `(n, k, V)`."""
        return self.head(hidden)
