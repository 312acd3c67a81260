"""The grid of tokens that is being denoised."""

import dataclasses

import torch

from .layout import Layout
from .rows import Rows


@dataclasses.dataclass
class Canvas(Rows):
    """The `(B, 1 + T)` grid of token ids: prompt columns, then generated ones.

    Column 0 is the scratch column: it is real for nobody, and takes the reads and writes of every entry of a window or
    a block that has no cell of its own. So nothing is clamped onto a real cell, and storage can grow at the right end.

    Attributes:
        input_ids (`LongTensor (B, 1 + T)`): token ids; the mask id at open positions, or what [`fill`] put there.
        real (`BoolTensor (B, 1 + T)`): cells that hold a token that counts (no padding).
        position_ids (`LongTensor (B, 1 + T)`): number of real cells before this one, so padding never shifts RoPE.
        open (`BoolTensor (B, 1 + T)`): generated positions that are not committed yet. Never derived from the ids: a
            prompt may contain the mask id.
        editable (`BoolTensor (B, 1 + T)`): cells that were open at the start; all others are never written.
        commit_step (`LongTensor (B, 1 + T)`): step of the row in which the position was committed, -1 elsewhere.
        confidence (`FloatTensor (B, 1 + T)`): confidence of the committed token at that step, 0 elsewhere.
        start, end (`LongTensor (B,)`): first real column, and the column behind the last one.
        limit (`LongTensor (B,)`): column behind the last one that is returned. What follows up to `end` is surplus:
            decoded, since the model must see whole blocks.
        origin (`LongTensor (B,)`): first column of the row's first block.
        first_open, first_eos (`LongTensor (B,)`): column of the left-most open position, and of the left-most
            committed EOS; `T + 1` where there is none.
        finished (`BoolTensor (B,)`): rows that need no further step.
        row (`LongTensor (B,)`): index of the row in the batch of the call.
        forwards (`LongTensor (B,)`): forwards in which the row ran.
        eos_token_ids (`tuple[int, ...]`): committing one of these may end a row.
        mask_token_id (`int`): id of open positions; -1 in a model without a mask, where something has to fill them.
        revocable (`bool`): a committed token is final only when its block is finished.
        block_ids (`LongTensor (B, 1 + T)`): number of the block of each cell, for block-causal attention; None where
            all cells see each other. That of the scratch column is larger than all others.
        held (`LongTensor (B,)`): a column of the block that a row stays in though nothing of it is open, `T + 1` where
            there is none; None if no decoder asks for it.
        span (`int`): no row has more columns than this from its first to its last open position.
        first (`int`): first column of the prompts. Columns in front of it are padding, made for a longer prompt that
            shares the columns (guidance); they are not returned.
    """

    input_ids: torch.Tensor
    real: torch.Tensor
    position_ids: torch.Tensor
    open: torch.Tensor
    editable: torch.Tensor
    commit_step: torch.Tensor
    confidence: torch.Tensor
    start: torch.Tensor
    end: torch.Tensor
    limit: torch.Tensor
    origin: torch.Tensor
    first_open: torch.Tensor
    first_eos: torch.Tensor
    finished: torch.Tensor
    row: torch.Tensor
    forwards: torch.Tensor
    eos_token_ids: tuple[int, ...] = ()
    mask_token_id: int = 0
    revocable: bool = False
    block_ids: torch.Tensor | None = None
    held: torch.Tensor | None = None
    span: int = 0
    first: int = 1

    @classmethod
    def build(
        cls,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None,
        *,
        new_tokens: int,
        mask_token_id: int,
        fill_token_id: int,
        eos_token_ids: tuple[int, ...] = (),
        infill: bool = False,
        layout: Layout | None = None,
    ) -> "Canvas":
        """Lays out prompts and open positions.

        Args:
            input_ids: `(B, P)` prompts, left-padded, or right-padded (then they are moved to the right).
            attention_mask: `(B, P)`, nonzero where a token counts; None where all do.
            new_tokens: number of open columns that follow the prompts; with `infill` it must be 0.
            mask_token_id: id written to open positions.
            fill_token_id: id written to padding.
            eos_token_ids: ids that end a row.
            infill: open every prompt cell that holds the mask id, and append nothing.
            layout: of the blocks of a block-causal model; surplus cells fill up the last one.
        """
        prompt, real = _left_padded(input_ids, attention_mask, fill_token_id)
        batch = prompt.shape[0]
        surplus = torch.zeros_like(prompt[:, 0]) if layout is None else layout.surplus(real.sum(1), new_tokens)
        limit, new_tokens = 1 + prompt.shape[1] + new_tokens, new_tokens + int(surplus.max())
        blank = lambda width, value, dtype: prompt.new_full((batch, width), value, dtype=dtype)  # noqa: E731
        ids = torch.cat([blank(1, fill_token_id, torch.long), prompt, blank(new_tokens, mask_token_id, torch.long)], 1)
        real = torch.cat([blank(1, 0, torch.bool), real, blank(new_tokens, 1, torch.bool)], 1)
        opened = torch.zeros_like(real)
        opened[:, ids.shape[1] - new_tokens :] = True
        if infill:
            opened = real & (ids == mask_token_id)
        columns = torch.arange(ids.shape[1], device=ids.device)
        end = limit + surplus
        real, opened = real & (columns < end[:, None]), opened & (columns < end[:, None])
        first_open = torch.where(opened, columns, columns.numel()).amin(1)
        canvas = cls(
            input_ids=ids,
            real=real,
            position_ids=(real.long().cumsum(1) - 1).clamp(min=0),
            open=opened,
            editable=opened.clone(),
            commit_step=torch.full_like(ids, -1),
            confidence=torch.zeros(ids.shape, dtype=torch.float32, device=ids.device),
            start=real.int().argmax(1),
            end=end,
            limit=torch.full_like(end, limit),
            origin=first_open,
            first_open=first_open.clone(),
            first_eos=torch.full_like(first_open, columns.numel()),
            finished=~opened.any(1),
            row=torch.arange(batch, device=ids.device),
            forwards=torch.zeros_like(first_open),
            eos_token_ids=eos_token_ids,
            mask_token_id=mask_token_id,
            span=prompt.shape[1] if infill else new_tokens,
        )
        if layout is not None:
            canvas.block_ids = layout.block_ids(canvas)
        return canvas

    @property
    def width(self) -> int:
        """Number of columns, the scratch column included."""
        return self.input_ids.shape[1]

    @property
    def frontier(self) -> torch.Tensor:
        """`(B,)`: a column of the block that is next to work on; `T + 1` where there is none."""
        return self.first_open if self.held is None else torch.minimum(self.first_open, self.held)

    def hold(self, column: torch.Tensor, stays: torch.Tensor, ran: torch.Tensor) -> None:
        """Keeps the rows that stay (`(B,)`) in the block of `column` `(B,)`, and lets the others that ran go on."""
        held = torch.full_like(column, self.width) if self.held is None else self.held
        self.held = torch.where(ran, torch.where(stays, column, self.width), held)

    def commit(
        self,
        columns: torch.Tensor,
        tokens: torch.Tensor,
        confidence: torch.Tensor,
        chosen: torch.Tensor,
        step: torch.Tensor,
    ) -> None:
        """Fixes tokens. The only place that does; [`reopen`] takes them back.

        Args:
            columns, tokens, confidence, chosen: `(B, n)`; entries that are not chosen go to the scratch column.
            step: `(B,)` step number of each row.
        """
        target = torch.where(chosen, columns, 0)
        # Column 0 may receive any token; it stays closed and not real, so nothing ever depends on it.
        self.input_ids.scatter_(1, target, tokens)
        self.confidence.scatter_(1, target, confidence)
        self.commit_step.scatter_(1, target, step[:, None].expand_as(target))
        self.open.scatter_(1, target, False)
        if self.eos_token_ids:
            eos = _is_any(tokens, self.eos_token_ids) & chosen
            self.first_eos = torch.minimum(self.first_eos, torch.where(eos, columns, self.width).amin(1))
        self.first_open = self._first(self.open)

    def fill(self, columns: torch.Tensor, tokens: torch.Tensor, chosen: torch.Tensor) -> None:
        """Puts tokens into open positions, for the model to see there. Nothing is committed.

        Args:
            columns, tokens, chosen: `(B, n)`; entries that are not chosen go to the scratch column.
        """
        self.input_ids.scatter_(1, torch.where(chosen, columns, 0), tokens)

    def reopen(self, columns: torch.Tensor, chosen: torch.Tensor) -> None:
        """Takes commits back: the chosen positions are masked and open again.

        Args:
            columns, chosen: `(B, n)`; chosen ones must be editable. Entries that are not go to the scratch column.
        """
        target = torch.where(chosen, columns, 0)
        self.input_ids.scatter_(1, target, self.mask_token_id)
        self.confidence.scatter_(1, target, 0.0)
        self.commit_step.scatter_(1, target, -1)
        self.open.scatter_(1, target, chosen)
        if self.eos_token_ids:
            self.first_eos = self._first(_is_any(self.input_ids, self.eos_token_ids) & self.editable & ~self.open)
        self.first_open = self._first(self.open)

    def _first(self, cells: torch.Tensor) -> torch.Tensor:
        found, column = cells.max(1)
        return torch.where(found, column, self.width)

    def take(self, other: "Canvas") -> None:
        """Copies the rows of `other` to their places in this canvas."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, torch.Tensor):
                value[other.row] = getattr(other, field.name)


def _is_any(tokens: torch.Tensor, ids: tuple[int, ...]) -> torch.Tensor:
    hit = tokens == ids[0]
    for other in ids[1:]:
        hit |= tokens == other
    return hit


def _left_padded(
    input_ids: torch.Tensor, attention_mask: torch.Tensor | None, fill_token_id: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Moves padding on the right of a row to its left. Holes inside a prompt stay where they are."""
    if attention_mask is None:
        return input_ids, torch.ones_like(input_ids, dtype=torch.bool)
    real = attention_mask != 0
    length = input_ids.shape[1]
    columns = torch.arange(length, device=input_ids.device)
    last = torch.where(real, columns, -1).amax(1)
    source = columns - (length - 1 - last)[:, None]
    inside = source >= 0
    source = source.clamp(min=0)
    real = real.gather(1, source) & inside
    return torch.where(inside, input_ids.gather(1, source), fill_token_id), real
