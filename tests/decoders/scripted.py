"""Decoders called on scores that are written by hand."""

import torch

from dllm_generate.sampling import Sampler
from dllm_generate.schedules import Blocks

VOCABULARY = 10


def blocks(rows: int, length: int) -> Blocks:
    """The only block of each of `rows` canvases."""
    columns, zero = torch.arange(1, length + 1).expand(rows, 1, length), torch.zeros(rows, dtype=torch.long)
    live = torch.ones(rows, 1, dtype=torch.bool)
    return Blocks(columns, zero[:, None], live, live, zero + 1, zero + 1 + length, zero + 1 + length, zero + 1)


def scores_of(confidences: list[list[float]], tokens: list[list[int]] | None = None) -> torch.Tensor:
    """Logits `(R, k, V)` that give each token (or token 1) the stated probability, and all others the rest evenly."""
    top = torch.tensor(confidences)[..., None]
    chosen = torch.tensor(tokens)[..., None] if tokens else torch.ones_like(top, dtype=torch.long)
    rest = ((1 - top) / (VOCABULARY - 1)).expand(*top.shape[:-1], VOCABULARY)
    return rest.scatter(-1, chosen, top).log()


def cells(*rows: str) -> torch.Tensor:
    """A `(R, k)` bool grid: `_` is False, anything else True."""
    return torch.tensor([[cell != "_" for cell in row] for row in rows])


class Walk:
    """A decoder and its state over several steps of one block."""

    def __init__(self, decoder, rows: int, length: int):
        self.decoder, self.rows = decoder, rows
        self.state = decoder.start(blocks(rows, length), Sampler())

    def __call__(self, scores, open_mask, ran=None, block: int = 0, editable=None, threshold=None, ids=None):
        ran = torch.ones(self.rows, dtype=torch.bool) if ran is None else ran
        self.decoder.begin(self.state, torch.full((self.rows,), block), ran)
        self.state.editable = editable
        output = self.decoder(
            ids, scores, open_mask=open_mask & ran[:, None], ran=ran, state=self.state, threshold=threshold
        )
        self.state.step = self.state.step + ran
        return output
