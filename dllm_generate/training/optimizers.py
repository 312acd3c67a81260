"""Muon for the hidden matrices, Adam for everything else, behind the face of one optimizer."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ..registry import require

OPTIMIZERS = ("adamw", "muon")


class CombinedOptimizer(Optimizer):
    """Several optimizers over disjoint parameters which step, save and load together.

    Args:
        optimizers: the parts; learning-rate schedules see the parameter groups of all of them.
    """

    def __init__(self, *optimizers: Optimizer):
        self.optimizers = optimizers
        super().__init__([group for optimizer in optimizers for group in optimizer.param_groups], {})
        self._link()

    def _link(self) -> None:
        self.param_groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of every part."""
        result = closure() if closure else None
        for optimizer in self.optimizers:
            optimizer.step()
        return result

    def state_dict(self) -> dict[str, Any]:
        """The states of the parts, in order."""
        return {"parts": [optimizer.state_dict() for optimizer in self.optimizers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads what `state_dict` returned."""
        for optimizer, state in zip(self.optimizers, state_dict["parts"], strict=True):
            optimizer.load_state_dict(state)
        self._link()


def muon_with_adam(
    model: nn.Module, muon_lr: float = 0.01, adam_lr: float = 2e-3, weight_decay: float = 0.1
) -> CombinedOptimizer:
    """Muon (`torch.optim.Muon`) for the matrices inside the layers, Adam for embeddings, head, norms and biases.

    Args:
        model: its parameters; those without gradient are left out.
        muon_lr: learning rate of the matrices. Default 0.01.
        adam_lr: learning rate of the rest. Default 2e-3.
        weight_decay: decoupled decay of the matrices. Default 0.1.

    Returns:
        One optimizer with the groups of both, or of the one that has parameters.

    Raises:
        ValueError: no parameter has a gradient.
    """
    ends = (model.get_input_embeddings(), model.get_output_embeddings())  # type: ignore[operator]
    outer = {id(m.weight) for m in ends if m is not None}
    wanted = [p for p in model.parameters() if p.requires_grad]
    hidden = [p for p in wanted if p.ndim == 2 and id(p) not in outer]
    rest = [p for p in wanted if p.ndim != 2 or id(p) in outer]
    require(len(wanted) > 0, "model", type(model).__name__, "one with a parameter that requires a gradient")
    parts: list[Optimizer] = []
    if hidden:
        parts.append(torch.optim.Muon(hidden, lr=muon_lr, weight_decay=weight_decay))
    # All parameters of an adapter are matrices.
    if rest:
        parts.append(torch.optim.Adam(rest, lr=adam_lr, betas=(0.9, 0.98)))
    return CombinedOptimizer(*parts)
