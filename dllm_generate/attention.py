"""The attention mask of a step: the only place that builds one."""

import torch
from torch.nn.functional import pad

SUPPORTED = ("eager", "sdpa")


def check_backend(implementation: str | None) -> None:
    """Raises ValueError for an attention backend that takes no 4-D mask."""
    if implementation not in (None, *SUPPORTED):
        raise ValueError(
            f"`attn_implementation` is {implementation!r}, but decoding needs a 4-D attention mask, which only "
            f"{list(SUPPORTED)} take: load the model with one of them."
        )


def attention_mask(visible: torch.Tensor, *, implementation: str | None, dtype: torch.dtype) -> torch.Tensor:
    """Builds the mask of a forward.

    Every query sees every visible key, unless `visible` says it per query; queries that stand for no cell do too, so
    that no row is fully masked.

    Args:
        visible: `(B, S)` bool, the keys that are real and visible; or `(B, Q, S)`, see [`block_causal`] and
            [`shadowed`].
        implementation: the model's `attn_implementation`.
        dtype: dtype of the hidden states.

    Returns:
        `(B, 1, 1, S)` or `(B, 1, Q, S)`: bool for sdpa; additive of `dtype` for eager.
    """
    mask = visible[:, None, None, :] if visible.dim() == 2 else visible[:, None]
    if implementation != "eager":
        return mask
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, torch.finfo(dtype).min)


def block_causal(visible: torch.Tensor, query_blocks: torch.Tensor, key_blocks: torch.Tensor) -> torch.Tensor:
    """What each query sees where no block sees a later one.

    Args:
        visible: `(B, S)` bool, the keys that are real and visible.
        query_blocks, key_blocks: `(B, Q)` and `(B, S)` numbers of their blocks.

    Returns:
        `(B, Q, S)` bool.
    """
    return visible[:, None] & (key_blocks[:, None] <= query_blocks[..., None])


def shadowed(
    visible: torch.Tensor, cells: torch.Tensor, shadow: torch.Tensor, *, queries: int, total: int
) -> torch.Tensor:
    """What each query sees where a shadow of some cells rides along.

    A shadow entry sees the whole shadow and all visible cells but its own one. No cell sees the shadow, and nobody sees
    the shadow entries that stand for no cell.

    Args:
        visible: `(B, C)` bool, the keys of cells that are real and visible. Those of the shadow follow.
        cells: `(B, C)` or `(C,)` column of the canvas that each of these keys belongs to.
        shadow: `(B, n)` columns of the cells; 0 for entries that stand for none.
        queries: number of queries in front of those of the shadow.
        total: number of keys `S`, with unused ones at the end.

    Returns:
        `(B, queries + n, S)` bool.
    """
    length = shadow.shape[1]
    exists = shadow > 0
    own = (cells[..., None, :] == shadow[..., None]) & exists[..., None]
    others = torch.cat([visible[:, None] & ~own, exists[:, None].expand(-1, length, -1)], -1)
    plain = pad(visible, (0, length))[:, None].expand(-1, queries, -1)
    return pad(torch.cat([plain, others], 1), (0, total - others.shape[-1]))


def near(visible: torch.Tensor, position_ids: torch.Tensor, window: int) -> torch.Tensor:
    """What each query sees in a layer that looks no farther than `window` tokens, where the keys are the queries.

    Args:
        visible: `(B, S)` or `(B, S, S)` bool, as for [`attention_mask`].
        position_ids: `(B, S)`.
        window: the largest distance.

    Returns:
        `(B, S, S)` bool.
    """
    distance = position_ids[..., None] - position_ids[:, None]
    queries = visible[:, None] if visible.dim() == 2 else visible
    return queries & (distance.abs() <= window)
