"""From scores to a token and a confidence for every position."""

import dataclasses

import torch
from transformers import LogitsProcessorList

from .rows import Rows


@dataclasses.dataclass
class Noise(Rows):
    """Uniform random numbers that depend only on (seed, row, step of the row, position, stream).

    So a row draws the same numbers whatever its neighbours do, and an idle row draws none.

    Args:
        seed (`int`): the call's seed.
        row (`LongTensor (R,)`): index of the row in the batch of the call.
        step (`LongTensor (R,)`): number of steps in which the row ran.
        positions (`LongTensor (R, k)`): position ids of the block.
    """

    seed: int
    row: torch.Tensor
    step: torch.Tensor
    positions: torch.Tensor

    def uniform(self, stream: int = 0) -> torch.Tensor:
        """Returns float64 numbers in [0, 1) of shape `(R, k)`, independent for each `stream`."""
        key = _mix(_mix(self.row + self.seed) + self.step)
        bits = _mix(_mix(key + stream)[:, None] + self.positions)
        return ((bits >> 11) & ((1 << 53) - 1)).double() * 2.0**-53


def _mix(x: torch.Tensor) -> torch.Tensor:
    """The finaliser of SplitMix64 after one increment; int64 arithmetic wraps around as it must."""
    x = x + _signed(0x9E3779B97F4A7C15)
    x = (x ^ ((x >> 30) & ((1 << 34) - 1))) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ ((x >> 27) & ((1 << 37) - 1))) * _signed(0x94D049BB133111EB)
    return x ^ ((x >> 31) & ((1 << 33) - 1))


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


@dataclasses.dataclass(frozen=True)
class Sampler:
    """Predicts a token and a confidence for every position of a block.

    Args:
        warpers (`LogitsProcessorList`, *optional*): transformers' temperature, top-k, top-p ... warpers. None is greedy
            and draws no random number.
        filtered_confidence (`bool`): take the confidence from the warped distribution instead of the unscaled logits,
            as Dream's published sampler does (arXiv 2508.15487). Many positions then tie at 1.
        postponed (`tuple[int, ...]`): tokens that get confidence 0 and are left out of the confidence of all others, so
            that they are committed last (LLaDA's `confidence_eos_eot_inf`, arXiv 2502.09992).
    """

    warpers: LogitsProcessorList | None = None
    filtered_confidence: bool = False
    postponed: tuple[int, ...] = ()

    def probability(self, scores: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """How likely given tokens are under the unscaled logits: `(R, k)` float32 for scores `(R, k, V)`.

        A postponed token has its plain probability here: it is to come late, but not to be doubted.
        """
        scores = scores.float()
        total = scores.logsumexp(-1)
        if self.postponed:
            ids = torch.tensor(self.postponed, device=scores.device)
            rest = scores.index_fill(-1, ids, float("-inf")).logsumexp(-1)
            total = torch.where(torch.isin(tokens, ids), total, rest)
        return (scores.gather(-1, tokens[..., None])[..., 0] - total).exp()

    def __call__(self, scores: torch.Tensor, noise: Noise | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Args: scores `(R, k, V)`. Returns tokens `(R, k)` and float32 confidences `(R, k)`."""
        scores = scores.float()
        top, tokens = scores.max(-1)
        base = scores
        if self.warpers is not None:
            flat = scores.flatten(0, 1)
            warped = self.warpers(tokens.reshape(-1, 1), flat).view_as(scores)  # type: ignore[arg-type]
            tokens = _draw(warped, noise.uniform())  # type: ignore[union-attr]
            base = warped if self.filtered_confidence else scores
            top = base.gather(-1, tokens[..., None])[..., 0]
        if not self.postponed:
            return tokens, (top - base.logsumexp(-1)).exp()
        base = base.index_fill(-1, torch.tensor(self.postponed, device=base.device), float("-inf"))
        confidence = (base.gather(-1, tokens[..., None])[..., 0] - base.logsumexp(-1)).exp()
        # Where bans or warpers leave nothing but postponed tokens.
        return tokens, confidence.nan_to_num(nan=0.0)


def _draw(scores: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """Inverse transform sampling: one number per position instead of one per vocabulary entry."""
    cumulative = scores.softmax(-1).cumsum(-1, dtype=torch.float64)
    target = uniform[..., None] * cumulative[..., -1:]
    # `right` skips entries of zero probability, also in front of the first possible one.
    return torch.searchsorted(cumulative, target, right=True)[..., 0].clamp(max=scores.shape[-1] - 1)
