"""Guesses of the states that a row may come to next."""

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

import torch

from .progress import with_progress

if TYPE_CHECKING:
    from .run import Run

# Positions, and tokens of each, that guesses may differ in.
PLACES, TOKENS = 12, 10


class Guesses(NamedTuple):
    """Guesses for n rows, d for each.

    Attributes:
        tokens (`LongTensor (n, d, k)`): guessed token of every position of the block.
        chosen (`BoolTensor (n, d, k)`): positions that the guess commits. None of them: no guess.
        ahead (`LongTensor (n, d)`): steps that the guess is ahead of the row.
    """

    tokens: torch.Tensor
    chosen: torch.Tensor
    ahead: torch.Tensor


def chain(run: "Run", columns: torch.Tensor, scores: torch.Tensor, opened: torch.Tensor, count: int) -> Guesses:
    """What the decoder commits in its next steps if the scores stay as they are.

    Args:
        run: holds the n rows as they are now.
        columns, opened: `(n, k)` columns of the block, and the open positions among them.
        scores: `(n, k, V)`.
        count: number of steps.
    """
    state = dataclasses.replace(run.state)
    ids, left = run.canvas.input_ids.gather(1, columns), opened
    live = opened.any(1)
    tokens, chosen = [], []
    for later in range(count):
        state.noise = run.noise(columns, 1, later)
        output = run.decoder(ids, scores, open_mask=left, ran=live, state=state)
        commit = with_progress(output.commit & left, output.priority, left, live)
        ids, left = torch.where(commit, output.tokens, ids), left & ~commit
        state.step = state.step + live
        tokens.append(ids)
        chosen.append(opened & ~left)
    ahead = torch.arange(1, count + 1, device=ids.device).expand(ids.shape[0], -1)
    return Guesses(torch.stack(tokens, 1), torch.stack(chosen, 1), ahead)


def tree(scores: torch.Tensor, opened: torch.Tensor, count: int) -> Guesses:
    """The most probable values of the positions that come next from the left.

    A node of the tree gives values to the first open positions of the block; its probability is the product of theirs.
    The `count` most probable nodes are taken.

    Args:
        scores: `(n, k, V)`.
        opened: `(n, k)` open positions.
        count: number of guesses.
    """
    length, depth = opened.shape[1], min(PLACES, opened.shape[1])
    columns = torch.arange(length, device=opened.device)
    # `length` stands for no place, where fewer are open.
    places = torch.where(opened, columns, length).sort(-1).values[:, :depth]
    at = places.clamp(max=length - 1)[..., None]
    logs = scores.gather(1, at.expand(-1, -1, scores.shape[-1])).float().log_softmax(-1)
    gains, values = logs.topk(min(TOKENS, logs.shape[-1]), -1)
    gains = gains.masked_fill((places == length)[..., None], float("-inf"))
    score, path, last = _most_probable(gains, count)
    # A node holds the number of its token at every place, in order.
    tokens = values[:, None].expand(-1, path.shape[1], -1, -1).gather(3, path[..., None])[..., 0]
    known = (torch.arange(depth, device=last.device) <= last[..., None]) & score.isfinite()[..., None]
    target = torch.where(known, places[:, None], length)
    grid = tokens.new_zeros(*path.shape[:2], length + 1)
    guessed = grid.bool().scatter(2, target, known)[..., :length]
    return Guesses(grid.scatter(2, target, tokens)[..., :length], guessed, torch.ones_like(last))


def _most_probable(gains: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The most probable nodes of a tree whose branches are the same at every node of a depth.

    Args:
        gains: `(n, depth, m)` log-probabilities of the branches.
        count: number of nodes.

    Returns:
        Log-probabilities `(n, count)`, branches taken on the way `(n, count, depth)`, and the last depth `(n, count)`.
    """
    rows, depth, branches = gains.shape
    score, path = gains.new_zeros(rows, 1), torch.zeros(rows, 1, depth, dtype=torch.long, device=gains.device)
    scores, paths = [], []
    for level in range(depth):
        grown = (score[..., None] + gains[:, None, level]).flatten(1)
        score, branch = grown.topk(min(count, grown.shape[1]), -1)
        path = path.gather(1, (branch // branches)[..., None].expand(-1, -1, depth)).clone()
        path[..., level] = branch % branches
        scores.append(score)
        paths.append(path)
    last = torch.cat([torch.full_like(s, level, dtype=torch.long) for level, s in enumerate(scores)], 1)
    score, best = torch.cat(scores, 1).topk(min(count, last.shape[1]), -1)
    path = torch.cat(paths, 1).gather(1, best[..., None].expand(-1, -1, depth))
    return score, path, last.gather(1, best)
