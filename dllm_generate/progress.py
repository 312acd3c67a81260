"""What a step guarantees, whatever its decoder says."""

import torch

from .decoders import Decoder, DecoderOutput

MASK_PREDICTED = 2
_DTYPES = {
    **{"tokens": torch.long, "provisional": torch.long},
    **{"confidence": torch.float32, "rank": torch.float32, "temperature": torch.float32},
}
_PER_ROW = ("temperature", "waits", "settled")
_REVISIONS = ("reopen", "edit")
_OPTIONAL = (*_REVISIONS, *_PER_ROW, "rank", "provisional")


def checked(output: DecoderOutput, decoder: Decoder, open_mask: torch.Tensor) -> DecoderOutput:
    """Returns `output`. Raises ValueError where it is not what a decoder is to return; looks at no value."""
    shape = tuple(open_mask.shape)
    name = f"`decoder` {type(decoder).__name__}"
    if not isinstance(output, DecoderOutput):
        raise ValueError(
            f"{name} returned a {type(output).__name__}, but must return a DecoderOutput of tensors of shape {shape}."
        )
    for field, value in vars(output).items():
        if value is None and field in _OPTIONAL:
            continue
        wanted, dtype = shape[:1] if field in _PER_ROW else shape, _DTYPES.get(field, torch.bool)
        is_tensor = isinstance(value, torch.Tensor)
        if not is_tensor or value.shape != wanted or value.dtype != dtype:
            found = f"of shape {tuple(value.shape)} and {value.dtype}" if is_tensor else f"as {type(value).__name__}"
            raise ValueError(f"{name} returned `{field}` {found}, but it must be a tensor of shape {wanted}, {dtype}.")
        if field in _REVISIONS and not decoder.revocable:
            raise ValueError(f"{name} returned `{field}`, but its class must set `revocable = True` to change commits.")
    return output


def faults(
    scores: torch.Tensor, tokens: torch.Tensor, open_mask: torch.Tensor, commit: torch.Tensor, mask_token_id: int
) -> torch.Tensor:
    """What is wrong at each position, for the next host read to raise.

    Args:
        scores: `(R, k, V)` after bans.
        tokens, open_mask, commit: `(R, k)`.

    Returns:
        `(R, k)`: 1 where a score is not finite at an open position, else `MASK_PREDICTED` where the mask id is about to
        be committed, else 0.
    """
    finite = scores.amax(-1).isfinite()
    return torch.where(finite, MASK_PREDICTED * (commit & (tokens == mask_token_id)), open_mask)


def revised(
    output: DecoderOutput, open_mask: torch.Tensor, editable: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The commits `(R, k)` that a revocable decoder takes back or replaces, and all that it commits.

    Args:
        output: what the decoder asks for.
        open_mask, editable: `(R, k)` open positions, and those that are not prompt.
    """
    again, commit = torch.zeros_like(open_mask), output.commit
    if output.reopen is not None:
        again = reopened(output.reopen, commit, open_mask, editable)
    if output.edit is not None:
        edit = output.edit & editable & ~open_mask
        again, commit = again | edit, commit | edit
    return again, commit


def reopened(
    reopen: torch.Tensor, commit: torch.Tensor, open_mask: torch.Tensor, editable: torch.Tensor
) -> torch.Tensor:
    """The commits `(R, k)` to take back: none in rows that would not commit more than they take back.

    Args:
        reopen, commit: `(R, k)` what a revocable decoder asks for.
        open_mask, editable: `(R, k)` open positions, and those that are not prompt.
    """
    asked = reopen & editable & ~open_mask
    commits = (commit & (open_mask | asked)).sum(-1)
    return asked & (commits > asked.sum(-1))[:, None]


def mostly_tied(confidence: torch.Tensor, open_mask: torch.Tensor) -> torch.Tensor:
    """Whether some row `(R,)` has more than half of its open positions, and at least three, at one confidence."""
    best = confidence.masked_fill(~open_mask, float("-inf")).amax(-1, keepdim=True)
    tied, total = ((confidence == best) & open_mask).sum(-1), open_mask.sum(-1)
    return ((tied > 2) & (2 * tied > total)).any()


def with_progress(
    commit: torch.Tensor, rank: torch.Tensor, open_mask: torch.Tensor, force: torch.Tensor
) -> torch.Tensor:
    """Adds the best open position (left-most on ties) of those rows `(R,)` in `force` that commit nothing."""
    best = rank.masked_fill(~open_mask, float("-inf")).argmax(-1, keepdim=True)
    stuck = (force & ~commit.any(-1))[:, None] & open_mask
    return commit | (stuck & (torch.arange(commit.shape[-1], device=commit.device) == best))
