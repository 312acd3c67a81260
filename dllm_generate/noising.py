"""What open positions hold: the mask, what a decoder put there for the time being, or random tokens."""

from typing import TYPE_CHECKING

import torch

from .registry import require
from .run import Run

if TYPE_CHECKING:
    from .config import DiffusionGenerationConfig
    from .decoders import Decoder
    from .families import Family

# Of the random numbers of a step; samplers and decoders have others.
STREAM = 2


def validate(family: "Family", decoder: "Decoder", config: "DiffusionGenerationConfig") -> None:
    """Raises ValueError for what needs a mask, in a model whose open positions hold random tokens."""
    without = f"for the family {family.name!r}, whose open positions hold random tokens"
    for option in ("smoothing", "lookahead", "infill"):
        value = getattr(config, option)
        require(not value, option, value, f"unset {without}")
    scale = config.guidance_scale
    require(scale in (None, 1), "guidance_scale", scale, f"unset {without}: they cannot hide the prompt")
    require(not decoder.verifies, "decoder", decoder.name, f"one that verifies nothing by masks, {without}")


def begin(run: Run) -> None:
    """Fills all open positions with noise, before the first step."""
    canvas = run.canvas
    columns = torch.arange(canvas.width, device=canvas.row.device).expand_as(canvas.input_ids)
    canvas.fill(columns, _noise(run, run.noise(columns, 1, ahead=-1)), canvas.open)


def refill(run: Run, columns: torch.Tensor, provisional: torch.Tensor | None, live: torch.Tensor) -> None:
    """Fills the positions that a step left open, for the next forward.

    Args:
        columns: `(B, slots * k)` of the blocks in work.
        provisional: `(B * slots, k)` what the decoder wants there; negative where it wants nothing.
        live: `(B * slots,)` blocks that took part.
    """
    canvas = run.canvas
    left = canvas.open.gather(1, columns).view(live.numel(), -1) & live[:, None]
    if run.vocabulary is None:
        tokens = torch.full_like(left, canvas.mask_token_id, dtype=torch.long)
    else:
        tokens = _noise(run, run.state.noise)
    if provisional is not None:
        tokens = torch.where(provisional >= 0, provisional, tokens)
    canvas.fill(columns, tokens.view_as(columns), left.view_as(columns))


def _noise(run: Run, noise) -> torch.Tensor:
    return (noise.uniform(STREAM) * run.vocabulary).long()
