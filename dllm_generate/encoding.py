"""Models with two bodies: one encodes finished text, left to right, and the other denoises the block in work."""

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.nn.functional import pad

from .backbone import Backbone
from .caches import DiffusionCache
from .guidance import View
from .registry import require
from .schedules import SCHEDULES

if TYPE_CHECKING:
    from .run import Run


class EncodingBackbone(Backbone):
    """A model whose encoder writes the keys and values of finished text, which its decoder reads and never writes.

    The encoder is causal: a finished block has no bounds any more. So the blocks of the family are those of the
    decoder, which sees all finished text and its whole block. The columns in front of the blocks in work that a window
    holds are encoded in a forward of their own, which counts as one.
    """

    encodes: ClassVar[bool] = True

    @abstractmethod
    def encode(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        visible: torch.Tensor,
        key_positions: torch.Tensor,
        cache: DiffusionCache,
    ) -> None:
        """Writes keys and values of finished text.

        Args:
            input_ids, position_ids: `(n, W)`.
            visible: `(n, W, S)` bool: of all slots, those that are real, finished and not behind the query.
            key_positions: `(n, S)` position of every slot.
            cache: aimed at the window.
        """

    @abstractmethod
    def denoise(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        visible: torch.Tensor,
        key_positions: torch.Tensor,
        finished: "Finished",
        start: torch.Tensor,
        rows: torch.Tensor | None,
    ) -> torch.Tensor:
        """Runs the decoder.

        Args:
            input_ids, position_ids: `(n, k)` of the blocks in work.
            visible: `(n, S)` bool: of all slots, those that are real and finished. The blocks themselves are all seen.
            key_positions: `(n, S)` position of every slot.
            finished: keys and values of the slots.
            start: `(n,)` first column of the blocks.
            rows: `(n,)` rows of the batch; None for all in order.

        Returns:
            `(n, k, d)`.
        """

    def passes(self, ran, lo, start):
        return ran.long() + (ran & (lo < start))

    def validate(self, family, config):
        of_family, shift, schedule = f"for the family {family.name!r}", family.logits_shift, config.build(SCHEDULES)
        require(not shift, "logits_shift", shift, f"unset {of_family}")
        layout = schedule.layout(family)
        # Then blocks are whole, and begin where finished text ends.
        whole = layout is not None and layout.prompt_is_one_block
        require(whole, "schedule", schedule.name, f"'block_diffusion' {of_family}, which denoises one block at a time")


class Finished:
    """The keys and values of a cache, for attention layers that read them and append their own.

    Args:
        cache: after its last forward.
        rows: `(n,)` those to read; None for all in order.
    """

    is_compileable = False

    def __init__(self, cache: DiffusionCache, rows: torch.Tensor | None):
        self.layers = [_Layer(layer, rows) for layer in cache.layers]


class _Layer:
    def __init__(self, layer: Any, rows: torch.Tensor | None):
        self._layer, self._rows = layer, rows

    @property
    def keys(self) -> torch.Tensor:
        """`(n, H, S, D)`."""
        return self._layer.keys if self._rows is None else self._layer.keys.index_select(0, self._rows)

    @property
    def values(self) -> torch.Tensor:
        """`(n, H, S, D)`."""
        return self._layer.values if self._rows is None else self._layer.values.index_select(0, self._rows)


def encoded(
    run: "Run",
    view: View,
    lo: torch.Tensor,
    source: torch.Tensor,
    ran: torch.Tensor,
    width: int,
    rows: torch.Tensor | None,
) -> torch.Tensor:
    """The forwards of a step on some rows: finished columns first, then the blocks in work.

    Args:
        lo, ran: `(n,)` first column of the window, and rows that take part.
        source: `(n, k)` places of the blocks in the window.
        width: columns of the widest window.
        rows: `(n,)` rows of the batch; None for all in order.

    Returns:
        Hidden rows of the blocks `(n, k, d)`.
    """
    backbone: EncodingBackbone = run.backbone  # type: ignore[assignment]
    blocks = lo[:, None] + source
    start, cells = blocks[:, 0], torch.arange(view.real.shape[1], device=lo.device)
    cache, kept = run.cache, rows
    if cache is None:
        # Every window begins with the first token of its row, and nothing is read that it does not write.
        cache, kept = DiffusionCache(lo.numel(), cells.numel()), None
    unused = (0, cache.slots - cells.numel())
    visible, keys = pad(view.real & (cells < start[:, None]), unused), pad(view.position_ids, unused)
    ahead = width - source.shape[1]
    if ahead > 0:
        columns = lo[:, None] + torch.arange(ahead, device=lo.device)
        columns = torch.where((columns < start[:, None]) & ran[:, None], columns, 0)
        ids, positions = view.input_ids.gather(1, columns), view.position_ids.gather(1, columns)
        cache.seek(columns, kept)
        # An entry that stands for no cell has position 0: it sees the first token of its row.
        backbone.encode(ids, positions, visible[:, None] & (keys[:, None] <= positions[..., None]), keys, cache)
        cache.release()
    ids, positions = view.input_ids.gather(1, blocks), view.position_ids.gather(1, blocks)
    return backbone.denoise(ids, positions, visible, keys, Finished(cache, kept), start, rows)
