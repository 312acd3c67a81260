"""Keys and values of the canvas, rewritten in place."""

import torch
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin


class DiffusionLayer(CacheLayerMixin):
    """Keys and values of one layer: `(B, H, slots, D)` buffers, slot c for column c of the canvas.

    Slot 0 is the scratch column: it takes the writes of window entries that stand for no cell, and no query sees it.

    Args:
        rows (`int`): B.
        slots (`int`): columns that there is room for; [`reserve`] makes more.
    """

    is_compileable = True
    is_croppable = False
    is_sliding = False
    supports_early_init = False

    def __init__(self, rows: int, slots: int):
        super().__init__()
        self.rows, self.slots = rows, slots

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        shape = (self.rows, key_states.shape[1], self.slots)
        # Zeros, not empty: a masked slot still enters the product with a zero weight, and 0 x NaN is NaN.
        self.keys = key_states.new_zeros(*shape, key_states.shape[-1])
        self.values = value_states.new_zeros(*shape, value_states.shape[-1])
        self.is_initialized = True

    def reserve(self, slots: int) -> None:
        """Makes room for so many slots."""
        missing, self.slots = slots - self.slots, slots
        if self.keys is not None and self.values is not None and missing > 0:
            self.keys, self.values = (torch.nn.functional.pad(x, (0, 0, 0, missing)) for x in (self.keys, self.values))

    def update(  # type: ignore[override]
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        columns: torch.Tensor,
        rows: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes the window `columns` `(n, W)` of `rows` `(n,)`, all if None; returns all slots of these rows."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        keys, values = self.keys, self.values
        assert keys is not None and values is not None
        # The layers of a model that is spread over devices lie beside the canvas, or elsewhere.
        rows, columns = (None if x is None else x.to(keys.device) for x in (rows, columns))  # type: ignore[assignment]
        target = torch.arange(keys.shape[0], device=keys.device) if rows is None else rows
        keys[target[:, None], :, columns] = key_states.transpose(1, 2)
        values[target[:, None], :, columns] = value_states.transpose(1, 2)
        if rows is None:
            return keys, values
        return keys.index_select(0, rows), values.index_select(0, rows)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        if self.keys is not None and self.values is not None:
            self.keys, self.values = (x.index_select(0, indices.to(x.device)) for x in (self.keys, self.values))

    def get_seq_length(self) -> int:
        return 0 if self.keys is None else self.keys.shape[2]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.slots, 0

    def get_max_length(self) -> int:
        # The owner reserves more where a canvas or a shadow needs it.
        return -1


class DiffusionCache(Cache):
    """A transformers `Cache` whose forwards rewrite a window of columns per row, and read everything.

    Call [`seek`] before each forward; the model's `update` then writes the window and returns all slots, so a mask must
    always say which of them are real.

    Args:
        rows_in_batch (`int`): number of rows.
        columns (`int`): number of columns of the canvas, the scratch column included.
        is_static (`bool`, defaults to `False`): round the slots up to a multiple of 64, so that canvases of similar
            length share their shapes. The values are the same.
    """

    def __init__(self, rows_in_batch: int, columns: int, is_static: bool = False):
        super().__init__(layers=[])
        self.rows_in_batch = rows_in_batch
        self.is_static = is_static
        self.slots = 0
        self.rows: torch.Tensor | None = None
        self.columns: torch.Tensor | None = None
        self.reserve(columns)

    @property
    def is_filled(self) -> bool:
        """Whether a forward has written keys and values."""
        return bool(self.layers)

    def reserve(self, columns: int) -> None:
        """Makes room for a canvas of so many columns."""
        self.slots = max(self.slots, -(-columns // 64) * 64 if self.is_static else columns)
        for layer in self.layers:
            layer.reserve(self.slots)  # type: ignore[union-attr]

    def seek(self, columns: torch.Tensor, rows: torch.Tensor | None = None) -> None:
        """Aims the next forward at `columns` `(n, W)` of `rows` `(n,)`; None means every row in order."""
        self.columns, self.rows = columns, rows

    def release(self) -> None:
        """Lets go of the columns, which after a refresh are as many as the canvas has."""
        self.columns, self.rows = None, None

    def update(self, key_states, value_states, layer_idx, *args, **kwargs):
        while len(self.layers) <= layer_idx:
            self.layers.append(DiffusionLayer(self.rows_in_batch, self.slots))
        return self.layers[layer_idx].update(key_states, value_states, self.columns, self.rows)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self.rows_in_batch = indices.numel()
        super().batch_select_indices(indices)
