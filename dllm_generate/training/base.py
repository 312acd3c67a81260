"""What an objective is: a corrupted batch, what is asked of it, and the loss of one forward.

All randomness comes from the generator that is passed in, so that a resumed run repeats itself.
"""

import inspect
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..attention import attention_mask
from ..families.base import ATTENTION_KINDS, Family
from ..registry import Registry, require
from .data import Batch


@dataclass(frozen=True)
class Corrupted:
    """What the model sees and what it is asked for.

    Args:
        input_ids: (B, S) ids, partly masked.
        position_ids: (B, S) positions; a copy of a token has the position of the token.
        allowed: (B, 1, S, S) bool, True where a query (row) may look at a key (column).
        labels: (B, S) wanted ids.
        weights: (B, S) float32 weight of each cell in the loss, 0 where nothing is asked.
    """

    input_ids: Tensor
    position_ids: Tensor
    allowed: Tensor
    labels: Tensor
    weights: Tensor


class Objective(ABC):
    """Base of the objectives: `objective(model, batch, generator)` is the loss of one forward.

    A recipe can name every class in this package that is decorated with `register_objective`; the arguments of its
    constructor are the settings. Those called `mask_token_id`, `logits_shift`, `block_length` or `prompt_is_one_block`
    are facts of the model, and filled in.

    Attributes:
        logits_shift: whether the row of position s - 1 predicts position s. `corrupt` need not care: labels and weights
            stand at the cell that is asked for, and `example` moves them.
        attentions: kinds of attention of the models that it can train.
        result: kind of attention that the trained model is to be decoded with; None: that of its family.
        needs_adapter: whether only a model with an adapter can be trained.
    """

    name: ClassVar[str]
    logits_shift: bool = False
    attentions: ClassVar[tuple[str, ...]] = ATTENTION_KINDS
    result: ClassVar[str | None] = None

    @property
    def needs_adapter(self) -> bool:
        return False

    @abstractmethod
    def corrupt(self, batch: Batch, generator: torch.Generator) -> Corrupted:
        """Draws one training example per row; see `Corrupted` for the shapes."""

    def example(self, batch: Batch, generator: torch.Generator) -> Corrupted:
        """As `corrupt`, with labels and weights at the rows whose logits predict them."""
        corrupted = self.corrupt(batch, generator)
        return shifted(corrupted) if self.logits_shift else corrupted

    def validate(self, family: Family) -> None:
        """Raises ValueError if it cannot train a model of this family."""
        require(family.noise == "mask", "model", family.name, "one whose open positions hold a mask token")
        name = getattr(self, "name", type(self).__name__)
        allowed = f"{' or '.join(self.attentions)} for the objective {name!r}"
        require(family.attention in self.attentions, "attention", family.attention, allowed)

    def __call__(self, model: nn.Module, batch: Batch, generator: torch.Generator) -> Tensor:
        """Weighted cross entropy of the model on a freshly corrupted batch.

        Args:
            model: any causal-LM class of transformers whose attention takes a 4-D mask.
            batch: B rows of prompt and answer.
            generator: CPU generator; the only source of randomness.

        Returns:
            Scalar loss.
        """
        return weighted_cross_entropy(model, self.example(batch, generator))


class ObjectiveRegistry(Registry[Objective]):
    """Objectives by name. Their settings are the arguments of their constructors."""

    def fields(self, name: str) -> list[str]:
        return list(inspect.signature(self.find(name)).parameters)


OBJECTIVES = ObjectiveRegistry("objective", "objective", "dllm_generate.training", Objective)
register_objective = OBJECTIVES.register


def shifted(corrupted: Corrupted) -> Corrupted:
    """Moves labels and weights from each cell to the row that predicts it in a model with shifted logits.

    That row is the cell one position before, in the copy of it that the asked cell sees: its own noisy block inside a
    block, the clean text before one. So does decoding, whose cache holds the clean text. A first position has no such
    row, and is not asked for.
    """
    positions = corrupted.position_ids
    before = corrupted.allowed[:, 0] & (positions[:, None, :] == positions[:, :, None] - 1)
    rows, cells = ((corrupted.weights > 0) & before.any(-1)).nonzero(as_tuple=True)
    predicting = before[rows, cells].long().argmax(-1)
    labels, weights = corrupted.labels.clone(), torch.zeros_like(corrupted.weights)
    labels[rows, predicting] = corrupted.labels[rows, cells]
    weights.index_put_((rows, predicting), corrupted.weights[rows, cells], accumulate=True)
    return replace(corrupted, labels=labels, weights=weights)


def logits_of(model: nn.Module, corrupted: Corrupted, columns: Tensor | None = None) -> Tensor:
    """Logits (B, S, V) of one forward; with `columns` (n,), of those columns only: (B, n, V)."""
    config: Any = getattr(model, "module", model).config
    device = next(model.parameters()).device
    allowed = corrupted.allowed[:, 0]
    # A query that stands for nothing would else see nothing, and its NaN would spread.
    mask = attention_mask(
        allowed | ~allowed.any(-1, keepdim=True), implementation=config._attn_implementation, dtype=torch.float32
    )
    kept = {} if columns is None else {"logits_to_keep": columns.to(device)}
    return model(
        input_ids=corrupted.input_ids.to(device),
        attention_mask=mask.to(device),
        position_ids=corrupted.position_ids.to(device),
        use_cache=False,
        **kept,
    ).logits


def weighted_cross_entropy(model: nn.Module, corrupted: Corrupted) -> Tensor:
    """Sum over all cells of weight times cross entropy, in float32, of one forward of `model`."""
    asked = corrupted.weights > 0
    # Most columns (prompt, clean copy) ask for nothing, and logits are what a step's memory is full of.
    columns = asked.any(0).nonzero()[:, 0]
    logits = logits_of(model, corrupted, columns)
    losses = F.cross_entropy(
        logits[asked[:, columns].to(logits.device)].float(),
        corrupted.labels[asked].to(logits.device),
        reduction="none",
    )
    return (losses * corrupted.weights[asked].to(logits.device)).sum()
