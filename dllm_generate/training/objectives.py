"""Training objectives: LLaDA masking, block diffusion on noisy and clean copies, and the causal baseline.

Each objective turns a batch of whole answers (`dllm_generate.training.data.Batch`) into what one forward needs.
All randomness comes from the generator that is passed in, so that a resumed run repeats itself.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

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
    """Base of the objectives: `objective(model, batch, generator)` is the loss of one forward."""

    @abstractmethod
    def corrupt(self, batch: Batch, generator: torch.Generator) -> Corrupted:
        """Draws one training example per row; see `Corrupted` for the shapes."""

    def __call__(self, model: nn.Module, batch: Batch, generator: torch.Generator) -> Tensor:
        """Weighted cross entropy of the model on a freshly corrupted batch.

        Args:
            model: any causal-LM class of transformers whose attention takes a 4-D additive mask.
            batch: B rows of prompt and answer.
            generator: CPU generator; the only source of randomness.

        Returns:
            Scalar loss.
        """
        return weighted_cross_entropy(model, self.corrupt(batch, generator))


def weighted_cross_entropy(model: nn.Module, corrupted: Corrupted) -> Tensor:
    """Sum over all cells of weight times cross entropy, in float32, of one forward of `model`."""
    blocked = torch.zeros(corrupted.allowed.shape).masked_fill(~corrupted.allowed, -1e9)
    device = next(model.parameters()).device
    logits = model(
        input_ids=corrupted.input_ids.to(device),
        attention_mask=blocked.to(device),
        position_ids=corrupted.position_ids.to(device),
        use_cache=False,
    ).logits
    asked = corrupted.weights > 0
    losses = F.cross_entropy(logits[asked.to(device)].float(), corrupted.labels[asked].to(device), reduction="none")
    return (losses * corrupted.weights[asked].to(device)).sum()


def _choose(values: Sequence[int], size: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.tensor(values)[torch.randint(len(values), size, generator=generator)]


class MaskedDiffusion(Objective):
    """LLaDA's objective (arXiv 2502.09992): k ~ U{1..L} answer cells are masked, mean cross entropy over them.

    Some rows show the states of semi-autoregressive decoding instead: clean prefix, partly masked block, and nothing
    but masks behind it. There only the block is asked for.

    Args:
        mask_token_id: id that hides a token.
        block_fraction: share of rows that show a semi-autoregressive state. Default 0.4; LLaDA's own recipe is 0.
        block_sizes: lengths of the block in these rows, drawn evenly.
        tail_weight: weight of a padding EOS behind the first EOS. Default 1.0, as LLaDA.
    """

    def __init__(
        self,
        mask_token_id: int,
        block_fraction: float = 0.4,
        block_sizes: Sequence[int] = (4, 8, 16, 32),
        tail_weight: float = 1.0,
    ):
        self.mask_token_id, self.block_fraction = mask_token_id, block_fraction
        self.block_sizes, self.tail_weight = tuple(block_sizes), tail_weight

    def _window(self, batch: Batch, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """(B, 1) first and last (exclusive) answer cell of the partly masked window."""
        rows = (batch.rows, 1)
        size = _choose(self.block_sizes, rows, generator)
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


class BlockDiffusion(Objective):
    """Block diffusion (BD3-LM, arXiv 2503.09573) on [clean | noisy | noisy] copies with one forward.

    The two noisy copies of the answer hide complementary cells, so that every token is asked for exactly once. A noisy
    block sees the clean blocks before it and itself; the clean copy is block-causal; the prompt is one block.

    Args:
        mask_token_id: id that hides a token.
        block_sizes: lengths of the blocks, drawn evenly for each row. Default 1, 2, 4 ... 32.
        tail: cells of EOS padding that are kept behind the longest answer. Default 4.
    """

    def __init__(self, mask_token_id: int, block_sizes: Sequence[int] = (1, 2, 4, 8, 16, 32), tail: int = 4):
        self.mask_token_id, self.block_sizes, self.tail = mask_token_id, tuple(block_sizes), tail

    def corrupt(self, batch: Batch, generator: torch.Generator) -> Corrupted:
        batch = batch.trimmed(self.tail)
        size = _choose(self.block_sizes, (batch.rows, 1), generator)
        longest = int(batch.canvas_lengths.max())
        cell = torch.arange(longest).expand(batch.rows, longest)
        real = cell < batch.canvas_lengths[:, None]
        positions = batch.prompt_lengths[:, None] + cell
        answer = batch.input_ids.gather(1, positions.clamp(max=batch.width - 1))
        rate = torch.rand(batch.rows, longest, generator=generator).gather(1, cell // size)
        first = torch.rand(cell.shape, generator=generator) < rate
        clean_cell = batch.answer_cells()
        block = torch.where(clean_cell < 0, 0, 1 + clean_cell.clamp(min=0) // size)
        kind = torch.cat([torch.zeros(batch.width), torch.ones(longest), torch.full((longest,), 2.0)])
        asked = real / (real.sum(1, keepdim=True) * batch.rows)
        return Corrupted(
            torch.cat([batch.input_ids, *(answer.masked_fill(m, self.mask_token_id) for m in (first, ~first))], 1),
            torch.cat([batch.position_ids(), positions, positions], 1),
            copies_mask(torch.cat([block, *2 * [1 + cell // size]], 1), kind, torch.cat([batch.real(), real, real], 1)),
            torch.cat([batch.input_ids, answer, answer], 1),
            torch.cat([torch.zeros(batch.input_ids.shape), asked * first, asked * ~first], 1),
        )


def copies_mask(block: Tensor, kind: Tensor, real: Tensor) -> Tensor:
    """Who sees whom among a clean copy and noisy copies of a text that is split into blocks.

    Args:
        block: (B, S) block number of each cell; the prompt is block 0.
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


class CausalLM(Objective):
    """Next-token prediction of the answer, for an autoregressive baseline of the same size.

    Args:
        tail_weight: weight of EOS padding behind the first EOS. Default 0.
    """

    def __init__(self, tail_weight: float = 0.0):
        self.tail_weight = tail_weight

    def corrupt(self, batch: Batch, generator: torch.Generator) -> Corrupted:
        batch = batch.trimmed(0)
        cell = batch.answer_cells()
        asked = (cell >= 0) & (cell < batch.canvas_lengths[:, None])
        weights = asked * torch.where(cell < batch.answer_lengths[:, None], 1.0, self.tail_weight)
        weights = weights / (batch.answer_lengths[:, None] * batch.rows)
        causal = torch.ones(batch.width, batch.width, dtype=torch.bool).tril()
        return Corrupted(
            batch.input_ids,
            batch.position_ids(),
            (causal & batch.real()[:, None, :])[:, None],
            batch.input_ids.roll(-1, 1),
            weights.roll(-1, 1),
        )


class Mixture(Objective):
    """One of several objectives for each batch, drawn with given weights.

    Args:
        objectives: the choices.
        weights: their relative frequencies. Default: all alike.
    """

    def __init__(self, objectives: Sequence[Objective], weights: Sequence[float] | None = None):
        self.objectives = tuple(objectives)
        self.weights = torch.tensor(weights or [1.0] * len(objectives))

    def corrupt(self, batch: Batch, generator: torch.Generator) -> Corrupted:
        chosen = int(torch.multinomial(self.weights, 1, generator=generator))
        return self.objectives[chosen].corrupt(batch, generator)
