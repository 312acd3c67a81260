"""Commit as many as the sum of their entropies allows."""

import dataclasses
from typing import ClassVar

import torch

from ..registry import is_number, require
from .base import DECODERS, Decoder, DecoderOutput, ranks


@DECODERS.register("entropy_bound")
@dataclasses.dataclass(frozen=True)
class EntropyBoundDecoder(Decoder):
    """Commits the positions of least entropy while the entropy of those before stays within a bound (EB-Sampler,
    arXiv 2505.24857).

    What is committed together is treated as independent; the joint entropy that this ignores is at most the sum of the
    entropies less the largest one.

    Args:
        gamma (`float`, defaults to 0.1): the bound, in nats.
        include_last (`bool`, defaults to `False`): count the last entropy, too, so that the whole sum must stay below
            `gamma`, as JetEngine does, a server of block-diffusion models. The position of least entropy is committed
            in any case.
    """

    memoryless: ClassVar[bool] = True
    gamma: float = 0.1
    include_last: bool = False

    def __post_init__(self):
        super().__post_init__()
        require(is_number(self.gamma) and self.gamma >= 0, "gamma", self.gamma, "a number >= 0")
        require(isinstance(self.include_last, bool), "include_last", self.include_last, "a bool")

    @property
    def ranks_by_confidence(self):
        return False

    def __call__(self, input_ids, scores, *, open_mask, ran, state, threshold=None):
        tokens, confidence = state.predict(scores)
        return DecoderOutput(
            tokens, confidence, within_bound(entropies(scores), open_mask, self.gamma, self.include_last)
        )


def within_bound(
    entropy: torch.Tensor, open_mask: torch.Tensor, bound: float, include_last: bool = False
) -> torch.Tensor:
    """The open positions `(R, k)` of least `entropy` whose sum stays within a bound; see [`EntropyBoundDecoder`]."""
    rank = ranks(-entropy, open_mask)
    order = rank.argsort(-1)
    ordered = entropy.masked_fill(~open_mask, 0.0).gather(-1, order)
    total = ordered.cumsum(-1)
    within = total < bound if include_last else total - ordered <= bound
    # The first one is taken in any case, and it is not always the most confident.
    return (within.gather(-1, rank) | (rank == 0)) & open_mask


def entropies(scores: torch.Tensor) -> torch.Tensor:
    """Entropy in nats of each position, float32 `(R, k)`, for scores `(R, k, V)`."""
    log_probabilities = scores.float().log_softmax(-1)
    probabilities = log_probabilities.exp()
    return -(probabilities * log_probabilities.clamp(min=torch.finfo(torch.float32).min)).sum(-1)
