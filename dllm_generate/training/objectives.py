"""The objectives: LLaDA masking, block diffusion on noisy and clean copies, and the causal baseline.

Each turns a batch of whole answers (`dllm_generate.training.data.Batch`) into what one forward needs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..families.base import Family
from ..registry import is_int, is_number, require
from .base import OBJECTIVES, Corrupted, Objective, logits_of, register_objective, shifted, weighted_cross_entropy
from .data import Batch
from .mixture import Mixture

__all__ = [
    "OBJECTIVES", "BlockDiffusion", "CausalLM", "Corrupted", "MaskedDiffusion", "Mixture", "Objective", "copies_mask",
    "logits_of", "register_objective", "shifted", "weighted_cross_entropy",
]  # fmt: skip

BLOCK_SIZES = (1, 2, 4, 8, 16, 32)


def choose(values: Sequence[int], size: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Draws evenly from `values`, in the shape `size`."""
    return torch.tensor(values)[torch.randint(len(values), size, generator=generator)]


def _checked_sizes(objective: Any) -> None:
    sizes = objective.block_sizes
    good = isinstance(sizes, (list, tuple)) and sizes and all(is_int(size) and size >= 1 for size in sizes)
    require(bool(good), "block_sizes", sizes, "a list of ints of at least 1")
    object.__setattr__(objective, "block_sizes", tuple(sizes))


@register_objective("masked_diffusion")
@dataclass(frozen=True)
class MaskedDiffusion(Objective):
    """LLaDA's objective (arXiv 2502.09992): k ~ U{1..L} answer cells are masked, mean cross entropy over them.

    The padding EOS of the canvas belongs to the answer, so that the model learns where an answer ends. Some rows can
    show the states of semi-autoregressive decoding instead: clean prefix, partly masked block, and nothing but masks
    behind it. There only the block is asked for.

    Args:
        mask_token_id: id that hides a token.
        block_fraction: share of rows that show a semi-autoregressive state. Default 0.0, as LLaDA.
        block_sizes: lengths of the block in these rows, drawn evenly.
        tail_weight: weight of a padding EOS behind the first EOS. Default 1.0, as LLaDA.
        logits_shift: a fact of the model.

    Raises:
        ValueError: for values out of range.
    """

    mask_token_id: int
    block_fraction: float = 0.0
    block_sizes: Sequence[int] = (4, 8, 16, 32)
    tail_weight: float = 1.0
    logits_shift: bool = False
    attentions: ClassVar[tuple[str, ...]] = ("bidirectional",)

    def __post_init__(self) -> None:
        share, tail = self.block_fraction, self.tail_weight
        require(is_number(share) and 0 <= share <= 1, "block_fraction", share, "a number from 0 to 1")
        require(is_number(tail) and tail >= 0, "tail_weight", tail, "a number of at least 0")
        _checked_sizes(self)

    def _window(self, batch: Batch, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """(B, 1) first and last (exclusive) answer cell of the partly masked window."""
        rows = (batch.rows, 1)
        size = choose(self.block_sizes, rows, generator)
        count = (batch.answer_lengths[:, None] + size - 1) // size
        low = (torch.rand(rows, generator=generator) * count).long() * size
        whole = torch.rand(rows, generator=generator) >= self.block_fraction
        room = batch.canvas_lengths[:, None]
        return torch.where(whole, 0, low), torch.where(whole, room, torch.minimum(low + size, room))

    def corrupt(self, batch: Batch, generator: torch.Generator) -> Corrupted:
        low, high = self._window(batch, generator)
        cell = batch.answer_cells()
        window = (cell >= low) & (cell < high)
        number = 1 + (torch.rand(low.shape, generator=generator) * (high - low)).long()
        rank = torch.rand(window.shape, generator=generator).masked_fill(~window, 2.0).argsort(1).argsort(1)
        noisy = window & (rank < number)
        hidden = noisy | ((cell >= high) & (cell < batch.canvas_lengths[:, None]))
        weights = torch.where(cell < batch.answer_lengths[:, None], 1.0, self.tail_weight) / (number * batch.rows)
        return Corrupted(
            batch.input_ids.masked_fill(hidden, self.mask_token_id),
            batch.position_ids(),
            batch.real()[:, None, None, :].expand(-1, 1, batch.width, -1),
            batch.input_ids,
            weights * noisy,
        )


@register_objective("block_diffusion")
@dataclass(frozen=True)
class BlockDiffusion(Objective):
    """Block diffusion (arXiv 2503.09573) in one forward: a clean copy of the text, and two noisy copies of the answer.

    The two noisy copies hide complementary cells, so that every token is asked for exactly once. A noisy block sees the
    clean blocks before it and itself; the clean copy is block-causal. The prompt is one block, and the answer's blocks
    begin behind it; or, with `prompt_is_one_block=False`, blocks are counted from position 0, and the noisy copies hold
    the end of the prompt, unmasked, where it shares a block with the answer.

    Args:
        mask_token_id: id that hides a token.
        block_sizes: lengths of the blocks, drawn evenly for each row. Default: the model's `block_length`, or
            1, 2, 4 ... 32 if that is free.
        tail: cells of EOS padding that are kept behind the longest answer. Default 4.
        logits_shift, block_length, prompt_is_one_block: facts of the model.

    Raises:
        ValueError: for values out of range.
    """

    mask_token_id: int
    block_sizes: Sequence[int] | None = None
    tail: int = 4
    logits_shift: bool = False
    block_length: int | None = None
    prompt_is_one_block: bool = True
    result: ClassVar[str | None] = "block_causal"

    def __post_init__(self) -> None:
        length = self.block_length
        require(length is None or (is_int(length) and length >= 1), "block_length", length, "an int of at least 1")
        if self.block_sizes is None:
            object.__setattr__(self, "block_sizes", (length,) if length else BLOCK_SIZES)
        _checked_sizes(self)
        require(is_int(self.tail) and self.tail >= 0, "tail", self.tail, "an int of at least 0")

    def validate(self, family: Family) -> None:
        super().validate(family)
        fixed, sizes = family.block_length, self.block_sizes
        given = self.block_length if sizes == (self.block_length,) else None
        if fixed is not None and given is not None:
            require(given == fixed, "block_length", given, f"{fixed}, that of the model")
        require(fixed is None or sizes == (fixed,), "block_sizes", sizes, f"[{fixed}], the blocks of the model")

    def corrupt(self, batch: Batch, generator: torch.Generator) -> Corrupted:
        batch = batch.trimmed(self.tail)
        size = choose(self.block_sizes or BLOCK_SIZES, (batch.rows, 1), generator)
        prompt = batch.prompt_lengths[:, None]
        # Cells of the prompt in the answer's first block.
        shared = torch.zeros_like(prompt) if self.prompt_is_one_block else prompt % size
        lengths = batch.canvas_lengths[:, None] + shared
        longest = int(lengths.max())
        cell = torch.arange(longest).expand(batch.rows, longest)
        real, wanted = cell < lengths, (cell >= shared) & (cell < lengths)
        positions = prompt - shared + cell
        answer = batch.input_ids.gather(1, positions.clamp(max=batch.width - 1))
        rate = torch.rand(batch.rows, longest, generator=generator).gather(1, cell // size)
        first = torch.rand(cell.shape, generator=generator) < rate
        start = prompt if self.prompt_is_one_block else torch.zeros_like(prompt)
        block, noisy_block = (_block_of(p, start, size) for p in (batch.position_ids(), positions))
        kind = torch.cat([torch.zeros(batch.width), torch.ones(longest), torch.full((longest,), 2.0)])
        asked = wanted / (wanted.sum(1, keepdim=True) * batch.rows)
        copies = (answer.masked_fill(hidden & wanted, self.mask_token_id) for hidden in (first, ~first))
        return Corrupted(
            torch.cat([batch.input_ids, *copies], 1),
            torch.cat([batch.position_ids(), positions, positions], 1),
            copies_mask(
                torch.cat([block, noisy_block, noisy_block], 1), kind, torch.cat([batch.real(), real, real], 1)
            ),
            torch.cat([batch.input_ids, answer, answer], 1),
            torch.cat([torch.zeros(batch.input_ids.shape), asked * first, asked * ~first], 1),
        )


def _block_of(positions: Tensor, start: Tensor, size: Tensor) -> Tensor:
    return torch.where(positions < start, 0, 1 + (positions - start).clamp(min=0) // size)


def copies_mask(block: Tensor, kind: Tensor, real: Tensor) -> Tensor:
    """Who sees whom among a clean copy and noisy copies of a text that is split into blocks.

    Args:
        block: (B, S) block number of each cell.
        kind: (S,) number of the copy, 0 for the clean one.
        real: (B, S) bool, False for padding.

    Returns:
        (B, 1, S, S) bool, True where the query (row) may look at the key (column).
    """
    query, key = block[:, :, None], block[:, None, :]
    clean_key = kind[None, :] == 0
    same_copy = kind[:, None] == kind[None, :]
    allowed = (clean_key & (key < query)) | (same_copy & (key == query))
    return (allowed & real[:, None, :])[:, None]


@register_objective("causal_lm")
@dataclass(frozen=True)
class CausalLM(Objective):
    """Next-token prediction of the answer, for an autoregressive baseline of the same size.

    Args:
        tail_weight: weight of EOS padding behind the first EOS. Default 0.

    Raises:
        ValueError: for a negative weight.
    """

    tail_weight: float = 0.0
    logits_shift: ClassVar[bool] = True  # type: ignore[misc]

    def __post_init__(self) -> None:
        tail = self.tail_weight
        require(is_number(tail) and tail >= 0, "tail_weight", tail, "a number of at least 0")

    def corrupt(self, batch: Batch, generator: torch.Generator) -> Corrupted:
        batch = batch.trimmed(0)
        cell = batch.answer_cells()
        asked = (cell >= 0) & (cell < batch.canvas_lengths[:, None])
        weights = asked * torch.where(cell < batch.answer_lengths[:, None], 1.0, self.tail_weight)
        causal = torch.ones(batch.width, batch.width, dtype=torch.bool).tril()
        return Corrupted(
            batch.input_ids,
            batch.position_ids(),
            (causal & batch.real()[:, None, :])[:, None],
            batch.input_ids,
            weights / (batch.answer_lengths[:, None] * batch.rows),
        )
