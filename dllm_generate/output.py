"""What generate returns."""

import dataclasses

import torch
from transformers.utils import ModelOutput

from .canvas import Canvas


@dataclasses.dataclass
class DiffusionGenerateOutput(ModelOutput):
    """Output of generate with `return_dict_in_generate=True`. G is the number of columns behind the prompts.

    Attributes:
        sequences (`LongTensor (B, P + G)`): prompts and generated ids; pad behind the end of a row.
        num_forwards (`LongTensor (B,)`): forwards in which the row ran. A guided forward counts as one, and so does one
            in which a model with an encoder of its own reads finished text.
        tokens_per_forward (`FloatTensor (B,)`): generated text tokens (no EOS, no pad) per forward of the row.
        finish_reason (`list[str]`): `"eos"`, `"length"`, `"stop"` (stop string or stopping criterion), `"max_time"`.
        commit_step (`LongTensor (B, G)`): step of the row, counted from 0, in which the position was committed; -1 for
            pad, and with infilling also for fixed positions (then G is the whole sequence).
        confidence (`FloatTensor (B, G)`): confidence of the committed token at that step; 0 where there is none.
        scores (`FloatTensor (B, G)`, *optional*): the same values, with `output_scores=True`.
    """

    sequences: torch.Tensor = None  # type: ignore[assignment]
    num_forwards: torch.Tensor = None  # type: ignore[assignment]
    tokens_per_forward: torch.Tensor = None  # type: ignore[assignment]
    finish_reason: list[str] = None  # type: ignore[assignment]
    commit_step: torch.Tensor = None  # type: ignore[assignment]
    confidence: torch.Tensor = None  # type: ignore[assignment]
    scores: torch.Tensor | None = None


@dataclasses.dataclass
class Ending:
    """Why and where an observer ended a row: text in front of `column` counts."""

    column: int
    reason: str


def assemble(
    canvas: Canvas,
    endings: dict[int, Ending],
    *,
    prompt_length: int,
    pad_token_id: int,
) -> DiffusionGenerateOutput:
    """Cuts every row at its end and fills up with pad.

    Args:
        canvas: the finished canvas.
        endings: rows that an observer ended, by number.
        prompt_length: columns of the prompts; 0 for infilling, where the prompt is what is generated.
        pad_token_id: id behind the end of a row.
    """
    last, reasons = _ends(canvas, endings)
    columns = torch.arange(canvas.width, device=last.device)
    kept = columns < last[:, None]
    text = kept & canvas.editable & (columns != canvas.first_eos[:, None])
    behind_prompt = canvas.first + prompt_length
    width = max(int(last.max()), behind_prompt) if prompt_length else canvas.width
    generated = slice(behind_prompt, width)
    hidden = ~kept & canvas.editable
    return DiffusionGenerateOutput(
        sequences=torch.where(hidden, pad_token_id, canvas.input_ids)[:, canvas.first : width],
        num_forwards=canvas.forwards,
        tokens_per_forward=text.sum(1) / canvas.forwards.clamp(min=1),
        finish_reason=reasons,
        commit_step=canvas.commit_step.masked_fill(hidden, -1)[:, generated],
        confidence=canvas.confidence.masked_fill(hidden, 0.0)[:, generated],
    )


def _ends(canvas: Canvas, endings: dict[int, Ending]) -> tuple[torch.Tensor, list[str]]:
    """First column behind the text of each row, and why it ended."""
    by_eos = canvas.first_eos < torch.minimum(canvas.first_open, canvas.limit)
    last = torch.where(by_eos, canvas.first_eos + 1, torch.minimum(canvas.limit, canvas.first_open))
    reasons = ["eos" if eos else "length" for eos in by_eos.tolist()]
    for row, ending in endings.items():
        if ending.column < int(last[row]) or not by_eos[row]:
            last[row] = min(ending.column, int(last[row]))
            reasons[row] = ending.reason
    return last, reasons
