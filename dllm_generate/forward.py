"""Runs the model on the windows of a step."""

import torch

from .guidance import View
from .run import Run
from .window import Group, Window


def block_scores(
    run: Run, columns: torch.Tensor, window: Window, groups: list[Group], ran: torch.Tensor
) -> torch.Tensor:
    """Runs the model on the windows.

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
    if len(groups) == 1 and len(groups[0].rows) == ran.numel():
        hidden = _forward(run, view, window, groups[0], source, ran, None)
    else:
        hidden = torch.zeros(())
        for group in groups:
            rows = torch.tensor(group.rows, device=columns.device)
            part = _forward(run, view, window, group, source, ran, rows)
            hidden = hidden if hidden.dim() else part.new_zeros(ran.numel(), *part.shape[1:])
            hidden.index_copy_(0, rows, part)
    scores = run.backbone.scores(hidden)
    if run.soft is not None:
        run.soft.absorb(lambda piece: scores[:, piece], torch.where(ran[:, None], columns, 0), None, run.steps)
    return scores if run.guidance is None else run.guidance.merge(scores)


def _predictors(run: Run, view: View, columns: torch.Tensor) -> torch.Tensor:
    """Columns `(n, k)` whose hidden states predict `columns`. A row's first real position keeps its own."""
    return torch.maximum(columns - 1, view.start[:, None]) if run.logits_shift else columns


def _forward(
    run: Run,
    view: View,
    window: Window,
    group: Group,
    source: torch.Tensor,
    ran: torch.Tensor,
    rows: torch.Tensor | None,
) -> torch.Tensor:
    """One call of the body, on the windows of `rows` (all if None); returns the hidden rows at `source` `(n, k)`."""
    lo, hi, end = window.lo, window.hi, window.visible_end
    if rows is not None:
        view, lo, hi, end, source, ran = view.select(rows), *(x[rows] for x in (lo, hi, end, source, ran))
    columns = lo[:, None] + torch.arange(group.width, device=lo.device)
    # Entries that stand for no cell go to the scratch column: clamped onto a real one they would overwrite it.
    columns = torch.where((columns < hi[:, None]) & ran[:, None], columns, 0)
    if run.cache is None:
        visible = view.real.gather(1, columns)
    else:
        visible = view.real & (torch.arange(view.real.shape[1], device=end.device) < end[:, None])
        visible = torch.nn.functional.pad(visible, (0, run.cache.slots - visible.shape[1]))
        run.cache.seek(columns, rows)
    ids, positions = view.input_ids.gather(1, columns), view.position_ids.gather(1, columns)
    embeds = None if run.soft is None else run.soft.embed(ids, run.canvas.open, columns, rows)
    hidden = run.backbone.hidden_states(ids, positions, visible, run.cache, embeds)
    if run.cache is not None:
        run.cache.release()
    if run.soft is not None:
        # What lies behind the active blocks. Their own scores follow.
        behind = columns[:, group.skip :]
        places = (_predictors(run, view, behind) - lo[:, None]).clamp(min=0)
        run.soft.absorb(lambda piece: run.backbone.scores(_gathered(hidden, places[:, piece])), behind, rows, run.steps)
    return _gathered(hidden, source.clamp(0, group.width - 1))


def _gathered(hidden: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    return hidden.gather(1, places[..., None].expand(-1, -1, hidden.shape[-1]))
