"""A call of generate, as it comes from transformers' preparation."""

import dataclasses
from typing import Any

import torch
from transformers import LogitsProcessorList, StoppingCriteriaList

from .config import DiffusionGenerationConfig
from .families import Family


@dataclasses.dataclass
class GuidanceRequest:
    """Guidance as the user gave it."""

    scale: float
    negative_ids: torch.Tensor | None = None
    negative_mask: torch.Tensor | None = None

    @classmethod
    def of(
        cls, scale: float | None, negative_ids: torch.Tensor | None, negative_mask: torch.Tensor | None
    ) -> "GuidanceRequest | None":
        """Returns None where `scale` asks for none. Raises ValueError for a negative prompt without effect."""
        if scale not in (None, 1):
            return cls(scale, negative_ids, negative_mask)
        if negative_ids is not None:
            raise ValueError(
                f"`negative_prompt_ids` is given, but `guidance_scale` is {scale!r}, and must be a number other than 1 "
                "for it to have an effect."
            )
        return None


@dataclasses.dataclass
class Request:
    """A call of generate after transformers' preparation.

    Attributes:
        input_ids: `(B, P)`, already repeated for `num_return_sequences`.
        attention_mask: `(B, P)` or None.
        processors, criteria: transformers' prepared lists.
    """

    model: Any
    family: Family
    config: DiffusionGenerationConfig
    input_ids: torch.Tensor
    attention_mask: torch.Tensor | None
    processors: LogitsProcessorList
    criteria: StoppingCriteriaList
    guidance: GuidanceRequest | None = None
    streamer: Any = None
    tokenizer: Any = None

    @property
    def new_tokens(self) -> int:
        """Columns to append."""
        return 0 if self.config.infill else self.config.max_length - self.input_ids.shape[1]

    @property
    def vocabulary(self) -> int:
        """Number of token ids that the model has."""
        return self.model.get_input_embeddings().weight.shape[0]

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Those that the model can write: defaults of a larger vocabulary are left out."""
        ids = self.config.eos_token_id
        given = () if ids is None else tuple(ids) if isinstance(ids, (list, tuple)) else (ids,)
        return tuple(i for i in given if 0 <= i < self.vocabulary)

    @property
    def pad_token_id(self) -> int:
        """Fills what belongs to no text."""
        pad = self.config.pad_token_id
        if pad is not None and 0 <= pad < self.vocabulary:
            return pad
        return self.eos_token_ids[0] if self.eos_token_ids else 0
