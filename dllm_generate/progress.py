"""What a step guarantees, whatever its decoder says."""

import torch


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
    commit: torch.Tensor, confidence: torch.Tensor, open_mask: torch.Tensor, force: torch.Tensor
) -> torch.Tensor:
    """Adds the best open position (left-most on ties) of those rows `(R,)` in `force` that commit nothing."""
    best = confidence.masked_fill(~open_mask, float("-inf")).argmax(-1, keepdim=True)
    stuck = (force & ~commit.any(-1))[:, None] & open_mask
    return commit | (stuck & (torch.arange(commit.shape[-1], device=commit.device) == best))
