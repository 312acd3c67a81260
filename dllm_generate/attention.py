"""The attention mask of a step: the only place that builds one."""

import torch

SUPPORTED = ("eager", "sdpa")


def check_backend(implementation: str | None) -> None:
    """Raises ValueError for an attention backend that takes no 4-D mask."""
    if implementation not in (None, *SUPPORTED):
        raise ValueError(
            f"`attn_implementation` is {implementation!r}, but decoding needs a 4-D attention mask, which only "
            f"{list(SUPPORTED)} take: load the model with one of them."
        )


def attention_mask(visible: torch.Tensor, *, implementation: str | None, dtype: torch.dtype) -> torch.Tensor:
    """Builds the mask of a bidirectional forward.

    Every query sees every visible key; queries that stand for no cell do too, so that no row is fully masked.

    Args:
        visible: `(B, S)` bool, the keys that are real and visible.
        implementation: the model's `attn_implementation`.
        dtype: dtype of the hidden states.

    Returns:
        `(B, 1, 1, S)`: bool for sdpa; additive of `dtype` for eager.
    """
    mask = visible[:, None, None, :]
    if implementation != "eager":
        return mask
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, torch.finfo(dtype).min)
