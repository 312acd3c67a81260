"""The mask of a plain call of a block-causal model. Decoding brings its own, and that is used as it is."""

from typing import Any

import torch
from torch.nn.functional import pad
from transformers import Cache
from transformers.utils.deprecation import deprecate_kwarg

from dllm_generate.attention import attention_mask as mask_of
from dllm_generate.attention import block_causal, check_backend


def plain_positions(
    tokens: torch.Tensor, attention_mask: torch.Tensor | None, position_ids: torch.Tensor | None, past: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Where the queries and keys of a plain call stand.

    Args:
        tokens: `(B, Q)` ids, or `(B, Q, d)` embeddings.
        attention_mask: `(B, past + Q)`, real keys; None if all are.
        position_ids: `(B, Q)` or `(1, Q)`; None to count real tokens, so that padding shifts neither RoPE nor blocks.
        past: number of keys in the cache.

    Returns:
        Positions of the queries `(B, Q)` and of the keys `(B, past + Q)`, and which keys are real, bool.

    Raises:
        ValueError: if the mask has another shape.
    """
    rows, length = tokens.shape[:2]
    shape = (rows, past + length)
    if attention_mask is None:
        real = torch.ones(shape, dtype=torch.bool, device=tokens.device)
    elif attention_mask.shape == shape:
        real = attention_mask.to(tokens.device, torch.bool)
    else:
        raise ValueError(f"`attention_mask` has the shape {tuple(attention_mask.shape)}, but must have {shape}.")
    keys = (real.cumsum(-1) - 1).clamp(min=0)
    if position_ids is None:
        return keys[:, past:], keys, real
    queries = position_ids.expand(rows, -1)
    # What the cache holds was put there by earlier calls, whose positions nobody keeps.
    return queries, torch.cat([keys[:, :past], queries], -1), real


class BlockCausalBody:
    """Mixin in front of transformers' body of a model: a position sees all blocks up to the end of its own.

    Blocks have `config.block_length` positions and begin at the first real token. A 4-D mask is used as it is.
    """

    @deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: Any,
    ):
        """As the body's own.

        Args:
            input_ids: `(B, Q)`; or `inputs_embeds` `(B, Q, d)`.
            attention_mask: None or `(B, S)` for the model's own attention, or a mask for each query: `(B, 1, Q, S)`
                or `(B, 1, 1, S)`, bool for sdpa and additive for eager.
            position_ids: `(B, Q)`; None to count real tokens.
            cache: keys and values of earlier positions.
            kwargs: as transformers'.

        Raises:
            ValueError: for a 2-D mask of another shape, and an attention backend that takes no 4-D mask.
        """
        tokens = input_ids if inputs_embeds is None else inputs_embeds
        if tokens is not None and (attention_mask is None or attention_mask.dim() == 2):
            implementation = self.config._attn_implementation  # type: ignore[attr-defined]
            check_backend(implementation)
            past = 0 if cache is None else int(cache.get_seq_length())
            position_ids, keys, real = plain_positions(tokens, attention_mask, position_ids, past)
            length = self.config.block_length  # type: ignore[attr-defined]
            visible = block_causal(real, position_ids // length, keys // length)
            # A padding query would else have no key at all, and its NaN would spread.
            visible = visible | ~visible.any(-1, keepdim=True)
            if cache is not None:
                visible = pad(visible, (0, cache.get_mask_sizes(tokens.shape[1], 0)[0] - visible.shape[-1]))
            attention_mask = mask_of(visible, implementation=implementation, dtype=self.dtype)  # type: ignore[attr-defined]
        return super().forward(  # type: ignore[misc]
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            cache=cache,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )
