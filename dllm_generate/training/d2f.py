"""Asymmetric distillation (D2F, arXiv 2508.09192): full attention teaches block-causal attention."""

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..attention import block_causal
from ..bundled import load
from ..families.base import Family
from ..registry import is_int, is_number, require
from .base import Corrupted, Objective, register_objective
from .data import Batch
from .losses import asked, asked_logits, distillation_loss


@register_objective("d2f")
@dataclass(frozen=True)
class D2F(Objective):
    """Teaches a student that sees only earlier blocks and its own what a teacher says that sees the whole noisy text.

    Every row is masked at rates that grow from block to block, which is what pipelined decoding meets: early blocks
    nearly done, later ones nearly open. The prompt is block 0 and stays clean. The teacher has the same weights with
    the adapter switched off, or is a model of its own. The loss of a masked cell is the cross entropy between the two
    over the rate of its block; all masked cells of the batch are averaged.

    Args:
        mask_token_id: id that hides a token.
        block_length: positions of a block. Default 16, as published.
        noise_range: the rate of the first block is drawn from here, and no rate exceeds the upper end. Default
            (0.2, 0.7), as the published code; the paper states (0.3, 0.7).
        self_align: learn the teacher's distribution; False: the true tokens, and no teacher. Default True.
        teacher: frozen model for `self_align` where the whole student is trained, or the folder or Hub id of one.
            Default: the student without its adapter, which must then be a PEFT model.
        temperature: of both distributions. Default 1.0, as published.
        tail: cells of EOS padding that are kept behind each answer. Default: one block.
        logits_shift: a fact of the model.

    Raises:
        ValueError: a value that is not allowed; a teacher without `self_align`.

    Example:
        >>> objective = D2F(tokenizer.mask_token_id, block_length=16)
        >>> loss = objective(get_peft_model(model, LoraConfig(target_modules=["q_proj", "v_proj"])), batch, generator)
    """

    mask_token_id: int
    block_length: int = 16
    noise_range: tuple[float, float] = (0.2, 0.7)
    self_align: bool = True
    teacher: Any = None
    temperature: float = 1.0
    tail: int | None = None
    logits_shift: bool = False
    attentions: ClassVar[tuple[str, ...]] = ("bidirectional",)
    result: ClassVar[str | None] = "block_causal"

    def __post_init__(self) -> None:
        length, noise, tail = self.block_length, self.noise_range, self.tail
        require(is_int(length) and length > 0, "block_length", length, "an int of at least 1")
        pair = isinstance(noise, (list, tuple)) and len(noise) == 2 and all(map(is_number, noise))
        require(pair and 0 < noise[0] <= noise[1] <= 1, "noise_range", noise, "two numbers with 0 < low <= high <= 1")
        require(isinstance(self.self_align, bool), "self_align", self.self_align, "a bool")
        warm = is_number(self.temperature) and self.temperature > 0
        require(warm, "temperature", self.temperature, "a number above 0")
        require(tail is None or (is_int(tail) and tail >= 0), "tail", tail, "None or an int of at least 0")
        known = self.teacher is None or isinstance(self.teacher, (str, nn.Module))
        require(known, "teacher", self.teacher, "a model, or the name of one")
        kind = type(self.teacher).__name__
        require(self.self_align or self.teacher is None, "teacher", kind, "None where `self_align` is False")

    @property
    def needs_adapter(self) -> bool:
        return self.self_align and self.teacher is None

    @functools.cached_property
    def frozen(self) -> Any:
        """The teacher, loaded if it was named, in evaluation mode and without gradients; None if there is none."""
        teacher = load(self.teacher)[0] if isinstance(self.teacher, str) else self.teacher
        return None if teacher is None else teacher.eval().requires_grad_(False)

    def validate(self, family: Family) -> None:
        super().validate(family)
        # Here, so that a missing one is told before the first step.
        self.frozen  # noqa: B018

    def _kept(self, batch: Batch) -> Batch:
        return batch.trimmed(self.block_length if self.tail is None else self.tail)

    def corrupt(self, batch: Batch, generator: torch.Generator) -> Corrupted:
        batch = self._kept(batch)
        count = -(-int(batch.canvas_lengths.max()) // self.block_length)
        rates = monotone_rates(torch.rand(batch.rows, count, generator=generator), *self.noise_range)
        return self.hide(batch, rates, torch.rand(batch.input_ids.shape, generator=generator))

    def hide(self, batch: Batch, rates: Tensor, draws: Tensor) -> Corrupted:
        """What the student sees under given noise.

        Args:
            batch: B rows, T wide.
            rates: (B, n) rate of each block.
            draws: (B, T) numbers in [0, 1); a cell of the canvas is masked where its number is below its block's rate.

        Returns:
            A `Corrupted` whose weights are 1 / (rate * number of masked cells).
        """
        cell = batch.answer_cells()
        block = torch.where(cell < 0, 0, 1 + cell.clamp(min=0) // self.block_length)
        rate = rates.gather(1, (block - 1).clamp(0, rates.shape[1] - 1))
        hidden = (cell >= 0) & batch.real() & (draws < rate)
        return Corrupted(
            batch.input_ids.masked_fill(hidden, self.mask_token_id),
            batch.position_ids(),
            block_causal(batch.real(), block, block)[:, None],
            batch.input_ids,
            hidden / (rate * hidden.sum().clamp(min=1)),
        )

    def __call__(self, model: nn.Module, batch: Batch, generator: torch.Generator) -> Tensor:
        """As `Objective`; the student is `model`.

        Raises:
            ValueError: `self_align` without a teacher, for a model without an adapter.
        """
        if self.needs_adapter and not hasattr(_inner(model), "disable_adapter"):
            raise ValueError(
                f"`teacher` is None, but must be a frozen model where {type(_inner(model)).__name__} has no adapter to "
                "switch off (peft.get_peft_model adds one)."
            )
        seen = self.example(batch, generator)
        # The teacher first: what it leaves in memory is small.
        soft = self.taught(model, seen, self._kept(batch).real()) if self.self_align else None
        student = asked_logits(model, seen)
        wanted = asked(seen.labels, seen, student) if soft is None else soft.to(student.device)
        return distillation_loss(student, wanted, asked(seen.weights, seen, student), self.temperature)

    def taught(self, model: nn.Module, seen: Corrupted, real: Tensor) -> Tensor:
        """The teacher's logits (n, V) for the cells that are asked for; it sees all that is `real` (B, T)."""
        full = replace(seen, allowed=real[:, None, None, :].expand_as(seen.allowed))
        with torch.no_grad(), _teaching(model, self.frozen) as teacher:
            return asked_logits(teacher, full)


def monotone_rates(uniform: Tensor, low: float, high: float) -> Tensor:
    """Mask rates that do not fall from block to block.

    Args:
        uniform: (B, n) numbers in [0, 1): where the first rate lies between `low` and `high`, and which part of an even
            share of the rest each further block adds.
        low, high: range of the rates.

    Returns:
        (B, n) rates.
    """
    first = low + uniform[:, :1] * (high - low)
    share = (high - first) / max(uniform.shape[1] - 1, 1)
    return torch.cat([first, first + (uniform[:, 1:] * share).cumsum(1)], 1).clamp(max=1.0)


@contextlib.contextmanager
def _teaching(model: Any, teacher: nn.Module | None) -> Iterator[nn.Module]:
    """`teacher`, or `model` without its adapter and without dropout."""
    if teacher is not None:
        yield teacher
        return
    training = model.training
    with _inner(model).disable_adapter():
        model.eval()
        try:
            yield model
        finally:
            model.train(training)


def _inner(model: Any) -> Any:
    """The model inside the wrapper of a parallel run."""
    return getattr(model, "module", model)
