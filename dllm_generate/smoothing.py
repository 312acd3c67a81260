"""Iteration smoothing: open positions carry on what the last forward thought of them."""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from .backbone import body_of
from .decoders import Decoder
from .registry import is_int, is_number, require, settings_of
from .rows import Rows

# Columns whose logits are held at once.
CHUNK = 64


@dataclasses.dataclass(frozen=True)
class Smoothing:
    """Hyper-parameters of iteration smoothing (dInfer, arXiv 2510.08666).

    An open position is fed the mask embedding plus `weight` times the expected embedding under its last prediction. The
    weight grows with the steps of a row; the decoder's threshold starts at 1 and falls to its value.

    Args:
        initial_weight (`float`, defaults to 0.15): weight in the first step.
        growth (`float`, defaults to 0.02): what each step adds to it.
        max_weight (`float`, defaults to 0.3): where it stops.
        threshold_decay (`float`, defaults to 0.02): what each step takes from a threshold of 1, down to the
            decoder's.
        temperature (`float`, defaults to 1.0): of the prediction.
        top_k (`int`, *optional*): use the most likely tokens only, with their probabilities scaled to sum 1. Unset, the
            expectation is over the whole vocabulary.
    """

    initial_weight: float = 0.15
    growth: float = 0.02
    max_weight: float = 0.3
    threshold_decay: float = 0.02
    temperature: float = 1.0
    top_k: int | None = None

    def __post_init__(self) -> None:
        for option in ("initial_weight", "growth", "max_weight", "threshold_decay"):
            value = getattr(self, option)
            finite = is_number(value) and 0 <= value < float("inf")
            require(finite, f"smoothing[{option!r}]", value, "a number >= 0, and finite")
        value = self.temperature
        require(is_number(value) and value > 0, "smoothing['temperature']", value, "a number > 0")
        value = self.top_k
        require(value is None or (is_int(value) and value > 0), "smoothing['top_k']", value, "None or an int > 0")

    @classmethod
    def of(cls, option: bool | dict[str, Any] | None) -> "Smoothing | None":
        """Makes what the option `smoothing` asks for: True is the default, a dict gives hyper-parameters.

        Raises:
            ValueError: for any other value, and for unknown keys.
        """
        return settings_of(cls, "smoothing", option)

    def validate(self, decoder: Decoder, model: Any, guided: bool) -> None:
        """Raises ValueError where smoothing cannot serve a call."""
        if getattr(decoder, "threshold", None) is None:
            raise ValueError(f"`smoothing` is on, but `decoder` {decoder.name!r} has no threshold for it to move.")
        if guided:
            raise ValueError("`smoothing` is on, but must be off with `guidance_scale`: it follows one prompt only.")
        if model.get_input_embeddings().weight.is_meta:
            raise ValueError(
                "`smoothing` is on, but the input embeddings of the model are offloaded: keep them on a device by its "
                "`device_map`."
            )
        embedding = model.get_input_embeddings()
        one = torch.zeros(1, 1, dtype=torch.long, device=embedding.weight.device)
        if not isinstance(embedding(one), torch.Tensor):
            name = type(model).__name__
            raise ValueError(f"`smoothing` is on, but must be off with {name}: its input embeddings are no vectors.")
        taken = inspect.signature(body_of(model).forward).parameters.values()
        if not any(p.name == "inputs_embeds" or p.kind is p.VAR_KEYWORD for p in taken):
            raise ValueError(f"`smoothing` is on, but {type(model).__name__} takes no `inputs_embeds`.")

    def weight(self, steps: torch.Tensor) -> torch.Tensor:
        """Weight of the expected embedding for rows that have run so many `steps`."""
        return (self.initial_weight + self.growth * steps).clamp(max=self.max_weight)

    def threshold(self, steps: torch.Tensor, floor: float) -> torch.Tensor:
        """Threshold for rows that have run so many `steps`, where the decoder's is `floor`."""
        return (1 - self.threshold_decay * steps).clamp(min=floor)


@dataclasses.dataclass
class SoftEmbeddings(Rows):
    """The state of smoothing.

    Attributes:
        settings: the hyper-parameters.
        embedding: the model's input embeddings.
        soft (`FloatTensor (B, 1 + T, d)`): what is added to the mask embedding of open positions; float32, or wider
            if the model is.
    """

    settings: Smoothing
    embedding: torch.nn.Embedding
    soft: torch.Tensor

    @classmethod
    def begin(cls, settings: Smoothing, embedding: torch.nn.Embedding, cells: torch.Tensor) -> "SoftEmbeddings":
        """The state before the first step, for a canvas whose grid is `cells` `(B, 1 + T)`."""
        table = embedding.weight
        dtype = torch.promote_types(table.dtype, torch.float32)
        return cls(settings, embedding, table.new_zeros(*cells.shape, table.shape[1], dtype=dtype, device=cells.device))

    def embed(
        self, input_ids: torch.Tensor, opened: torch.Tensor, columns: torch.Tensor, rows: torch.Tensor | None
    ) -> torch.Tensor:
        """What the model is fed. A committed position has its plain embedding again, whatever its state still holds.

        Args:
            input_ids, columns: `(n, W)` ids and columns of the window.
            opened: `(B, 1 + T)` open positions of the canvas.
            rows: `(n,)` rows of the canvas; None for all in order.

        Returns:
            `(n, W, d)`.
        """
        row = self._rows(rows)
        plain = self.embedding(input_ids)
        return plain + (self.soft[row, columns] * opened[row, columns][..., None]).to(plain.dtype)

    def absorb(
        self,
        logits: Callable[[slice], torch.Tensor],
        columns: torch.Tensor,
        rows: torch.Tensor | None,
        steps: torch.Tensor,
    ) -> None:
        """Takes in the predictions of a forward, some columns at a time.

        Args:
            logits: gives the logits `(n, w, V)` that predict a slice of `columns`.
            columns: `(n, W)`; 0 for entries that stand for no cell.
            rows: `(n,)` rows of the canvas; None for all in order.
            steps: `(B,)` steps that the rows of the canvas have run.
        """
        row = self._rows(rows)
        weight = self.settings.weight(steps)[row][..., None].to(self.soft.dtype)
        for first in range(0, columns.shape[1], CHUNK):
            piece = slice(first, first + CHUNK)
            self.soft[row, columns[:, piece]] = weight * self._expected(logits(piece)).to(self.soft.dtype)

    def _rows(self, rows: torch.Tensor | None) -> torch.Tensor:
        every = torch.arange(self.soft.shape[0], device=self.soft.device)
        return (every if rows is None else rows)[:, None]

    def _expected(self, logits: torch.Tensor) -> torch.Tensor:
        """The expected embedding `(n, w, d)` under logits `(n, w, V)`."""
        table = self.embedding.weight
        logits = logits.to(self.soft.dtype) / self.settings.temperature
        if self.settings.top_k is None:
            return logits.softmax(-1).to(table.dtype) @ table
        top = logits.topk(min(self.settings.top_k, logits.shape[-1]), dim=-1)
        share = top.values.softmax(-1).to(table.dtype).flatten(0, 1)
        bag = F.embedding_bag(top.indices.flatten(0, 1), table, per_sample_weights=share, mode="sum")
        return bag.view(*logits.shape[:-1], -1)
