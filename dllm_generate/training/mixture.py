"""Several objectives in one run."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..families.base import Family
from .base import Corrupted, Objective
from .data import Batch


class Mixture(Objective):
    """One of several objectives for each batch, drawn with given weights.

    Args:
        objectives: the choices.
        weights: their relative frequencies. Default: all alike.
    """

    def __init__(self, objectives: Sequence[Objective], weights: Sequence[float] | None = None):
        self.objectives = tuple(objectives)
        self.weights = torch.tensor(weights or [1.0] * len(objectives), dtype=torch.float)

    def _drawn(self, generator: torch.Generator) -> Objective:
        return self.objectives[int(torch.multinomial(self.weights, 1, generator=generator))]

    @property
    def needs_adapter(self) -> bool:
        return any(objective.needs_adapter for objective in self.objectives)

    def corrupt(self, batch: Batch, generator: torch.Generator) -> Corrupted:
        return self._drawn(generator).corrupt(batch, generator)

    def example(self, batch: Batch, generator: torch.Generator) -> Corrupted:
        return self._drawn(generator).example(batch, generator)

    def validate(self, family: Family) -> None:
        for objective in self.objectives:
            objective.validate(family)

    def __call__(self, model: nn.Module, batch: Batch, generator: torch.Generator) -> Tensor:
        # Of the drawn one, which may do more than a forward.
        return self._drawn(generator)(model, batch, generator)
