"""Runs the model on the windows of a step."""

import dataclasses

import torch
from torch.nn.functional import pad

from .attention import block_causal, shadowed
from .encoding import encoded
from .guidance import View
from .rows import Rows
from .run import Run
from .window import Group, Window


@dataclasses.dataclass
class _Query(Rows):
    """What model rows ask of a forward.

    Attributes:
        lo, hi, end (`LongTensor (n,)`): the window, and the column behind the last one that is visible.
        ran (`BoolTensor (n,)`): rows that take part.
        source (`LongTensor (n, k)`): places in the window whose hidden states are wanted.
        shadow (`LongTensor (n, k)`): cells for which a mask rides along; 0 for none. None if the decoder wants none.
    """

    lo: torch.Tensor
    hi: torch.Tensor
    end: torch.Tensor
    ran: torch.Tensor
    source: torch.Tensor
    shadow: torch.Tensor | None


def block_scores(
    run: Run, columns: torch.Tensor, window: Window, groups: list[Group], ran: torch.Tensor
) -> torch.Tensor:
    """Runs the model on the windows. For a decoder that verifies, also rates the tokens in place.

    Args:
        columns: `(B, n)` columns of the active blocks; only their hidden states reach the head.
        window: columns to recompute.
        groups: the forwards.
        ran: `(B,)` rows that take part.

    Returns:
        Logits `(B, n, V)` that predict `columns`.
    """
    view = View.of(run.canvas) if run.guidance is None else run.guidance.doubled(run.canvas)
    if run.guidance is not None:
        columns, ran = torch.cat([columns, columns]), torch.cat([ran, ran])
    source = _predictors(run, view, columns) - window.lo[:, None]
    shadow = torch.where(ran[:, None], columns, 0) if run.decoder.verifies else None
    query = _Query(window.lo, window.hi, window.visible_end, ran, source, shadow)
    if len(groups) == 1 and len(groups[0].rows) == ran.numel():
        hidden = _forward(run, view, query, groups[0], None)
    else:
        hidden = torch.zeros(())
        for group in groups:
            rows = torch.tensor(group.rows, device=columns.device)
            part = _forward(run, view, query, group, rows)
            hidden = hidden if hidden.dim() else part.new_zeros(ran.numel(), *part.shape[1:])
            hidden.index_copy_(0, rows, part)
    if shadow is not None:
        hidden, shade = hidden.chunk(2, 1)
        _verify(run, shade, columns)
    scores = run.backbone.scores(hidden)
    if run.soft is not None:
        run.soft.absorb(lambda piece: scores[:, piece], torch.where(ran[:, None], columns, 0), None, run.steps)
    return scores if run.guidance is None else run.guidance.merge(scores)


def _verify(run: Run, hidden: torch.Tensor, columns: torch.Tensor) -> None:
    """Rates the tokens in place at `columns` by the hidden states of their shadow; its logits are let go at once."""
    scores = run.backbone.scores(hidden)
    scores = scores if run.guidance is None else run.guidance.merge(scores)
    columns = columns[: scores.shape[0]]
    # A penalty would count the token that is being rated.
    constraints = dataclasses.replace(run.constraints, penalty=1.0)
    scores = constraints(scores, run.canvas, columns)
    probability = run.state.sampler.probability(scores, run.canvas.input_ids.gather(1, columns))
    run.state.verification = probability.view(run.state.block.numel(), -1)


def _predictors(run: Run, view: View, columns: torch.Tensor) -> torch.Tensor:
    """Columns `(n, k)` whose hidden states predict `columns`. A row's first real position keeps its own."""
    return torch.maximum(columns - 1, view.start[:, None]) if run.logits_shift else columns


def _forward(run: Run, view: View, query: _Query, group: Group, rows: torch.Tensor | None) -> torch.Tensor:
    """One call of the body, on the windows of `rows` (all if None).

    Returns the hidden rows at `source` `(n, k, d)`; where there is a shadow, its hidden rows follow: `(n, 2k, d)`.
    """
    if rows is not None:
        view, query = view.select(rows), query.select(rows)
    if run.backbone.encodes:
        return encoded(run, view, query.lo, query.source, query.ran, group.width, rows)
    columns = query.lo[:, None] + torch.arange(group.width, device=query.lo.device)
    # Entries that stand for no cell go to the scratch column: clamped onto a real one they would overwrite it.
    columns = torch.where((columns < query.hi[:, None]) & query.ran[:, None], columns, 0)
    visible = _aimed(run, view, query, columns, rows)
    ids, positions = view.input_ids.gather(1, columns), view.position_ids.gather(1, columns)
    fed = columns
    if query.shadow is not None:
        ids = pad(ids, (0, query.shadow.shape[1]), value=run.canvas.mask_token_id)
        positions = torch.cat([positions, view.position_ids.gather(1, query.shadow)], 1)
        # The scratch column has no soft embedding: the shadow consists of plain masks.
        fed = pad(columns, (0, query.shadow.shape[1]))
    embeds = None if run.soft is None else run.soft.embed(ids, run.canvas.open, fed, rows)
    hidden = run.backbone.hidden_states(ids, positions, visible, run.cache, embeds, steady=group.steady)
    if run.cache is not None:
        run.cache.release()
    if run.soft is not None:
        # What lies behind the active blocks. Their own scores follow.
        behind = columns[:, group.skip :]
        places = (_predictors(run, view, behind) - query.lo[:, None]).clamp(min=0)
        run.soft.absorb(lambda piece: run.backbone.scores(_gathered(hidden, places[:, piece])), behind, rows, run.steps)
    wanted = _gathered(hidden, query.source.clamp(0, group.width - 1))
    return wanted if query.shadow is None else torch.cat([wanted, hidden[:, group.width :]], 1)


def _aimed(run: Run, view: View, query: _Query, columns: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
    """Aims the cache at the window and the shadow; returns the keys that are visible, per query if there is a shadow.

    The keys of a shadow follow those of the window, or lie in slots behind the canvas: they are no cells.
    """
    shadow = query.shadow
    extra = 0 if shadow is None else shadow.shape[1]
    if run.cache is None:
        # A row that idles among others has no cells here, and no query of it may be left without a key.
        cells, visible = columns, view.real.gather(1, columns) | ~query.ran[:, None]
        total = cells.shape[1] + extra
    else:
        width = view.real.shape[1]
        cells = torch.arange(width, device=columns.device)
        visible = view.real & (cells < query.end[:, None])
        run.cache.reserve(width + extra)
        total, slots = run.cache.slots, columns
        if shadow is not None:
            behind = torch.arange(width, width + extra, device=columns.device)
            slots = torch.cat([columns, torch.where(shadow > 0, behind, 0)], 1)
        run.cache.seek(slots, rows)
    if shadow is not None:
        return shadowed(visible, cells, shadow, queries=columns.shape[1], total=total)
    if view.block_ids is not None:
        keys = view.block_ids if run.cache is not None else view.block_ids.gather(1, columns)
        visible = block_causal(visible, view.block_ids.gather(1, columns), keys)
    missing = total - visible.shape[-1]
    return pad(visible, (0, missing)) if missing else visible


def _gathered(hidden: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    return hidden.gather(1, places[..., None].expand(-1, -1, hidden.shape[-1]))
