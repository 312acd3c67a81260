"""Streaming: final tokens in order and once, drafts in between."""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase, TextStreamer
from transformers.generation.streamers import BaseStreamer

from .output import Ending
from .run import Run


class RowStreamer(BaseStreamer):
    """Streams a batch as text, tagged with the row. transformers' own text streamers take one row only.

    Args:
        tokenizer: decodes the ids.
        on_text (`Callable[[int, str, bool], None]`): called with the row, a piece of its text, and whether the row
            ends with it.
        skip_prompt (`bool`, defaults to `True`): do not pass on the prompts.
        decode_kwargs: passed on to `tokenizer.decode`, such as `skip_special_tokens=True`.

    Example:
        >>> texts = {}
        >>> streamer = RowStreamer(tokenizer, lambda row, text, end: texts.setdefault(row, []).append(text))
        >>> model.generate(**inputs, streamer=streamer)
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        on_text: Callable[[int, str, bool], None],
        skip_prompt: bool = True,
        **decode_kwargs: Any,
    ):
        self._new = lambda row: _RowText(tokenizer, lambda text, end: on_text(row, text, end), **decode_kwargs)
        self._skip_prompt = skip_prompt
        self._rows: dict[int, _RowText] = {}

    def put(self, value: torch.Tensor) -> None:
        """Receives the prompts `(B, P)`."""
        for row, prompt in enumerate(value):
            if not self._skip_prompt:
                self.put_row(row, prompt)

    def put_row(self, row: int, value: torch.Tensor) -> None:
        """Receives final tokens `(n,)` of a row."""
        self._rows.setdefault(row, self._new(row)).put(value)

    def end_row(self, row: int) -> None:
        """Flushes a row; nothing more comes for it."""
        self._rows.pop(row, self._new(row)).end()

    def end(self) -> None:
        """Flushes the rows that an error left unfinished."""
        for row in list(self._rows):
            self.end_row(row)


class _RowText(TextStreamer):
    def __init__(self, tokenizer, on_text: Callable[[str, bool], None], **decode_kwargs):
        super().__init__(tokenizer, **decode_kwargs)
        self._on_text = on_text

    def on_finalized_text(self, text: str, stream_end: bool = False):
        self._on_text(text, stream_end)


@dataclasses.dataclass
class StopStrings:
    """Holds back the ids whose text may turn out to begin a stop string.

    Args:
        tokenizer: decodes the ids.
        strings: the stop strings.
    """

    tokenizer: PreTrainedTokenizerBase
    strings: list[str]
    _pending: list[int] = dataclasses.field(default_factory=list)

    def feed(self, ids: list[int]) -> list[int]:
        """Takes new final ids, and returns those that are safe to show."""
        self._pending += ids
        # The bytes of a character may come in several tokens: half a character is held back, too.
        text = self._text(self._pending).rstrip("\ufffd")
        whole = [at for s in self.strings if (at := text.find(s)) >= 0]
        begun = [len(text) - n for s in self.strings for n in range(1, len(s)) if text.endswith(s[:n])]
        return self._release(min(whole + begun, default=len(text)))

    def finish(self) -> list[int]:
        """Returns what is left in front of the first stop string, or all of it."""
        text = self._text(self._pending)
        cut = min((at for s in self.strings if (at := text.find(s)) >= 0), default=None)
        if cut is None:
            return self._release(len(text))
        shown = self._release(cut)
        rest = text[len(self._text(shown)) : cut]
        # The stop string may begin inside a token: what stands before it is shown all the same.
        return shown + (self.tokenizer.encode(rest, add_special_tokens=False) if rest else [])

    def _release(self, characters: int) -> list[int]:
        count = len(self._pending)
        while count and len(self._text(self._pending[:count])) > characters:
            count -= 1
        shown, self._pending = self._pending[:count], self._pending[count:]
        return shown

    def _text(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode(ids))


@dataclasses.dataclass
class Emitter:
    """Feeds a streamer from the canvas, block by block, after every step.

    EOS, pad and what follows a stop string are not sent.

    Args:
        streamer: transformers' streamers (batch 1), or one with `put_row` and `end_row`.
        endings: rows that a stopping criterion ended.
        stop_strings: makes what holds stop strings back, for one row.
    """

    streamer: Any
    endings: dict[int, Ending]
    stop_strings: Callable[[], StopStrings] | None = None
    _sent: dict[int, int] = dataclasses.field(default_factory=dict)
    _held: dict[int, StopStrings] = dataclasses.field(default_factory=dict)

    def __call__(self, run: Run) -> None:
        canvas = run.canvas
        settled = run.schedule.settled(canvas).tolist()
        text_end = torch.minimum(torch.minimum(canvas.first_eos, canvas.first_open), canvas.limit).tolist()
        facts = zip(canvas.row.tolist(), canvas.finished.tolist(), canvas.origin.tolist(), settled, text_end)
        for place, (row, finished, origin, block_start, end) in enumerate(facts):
            final = min(end if finished else block_start, end)
            if row in self.endings:
                final = min(end, self.endings[row].column)
            begin = self._sent.setdefault(row, origin)
            self._sent[row] = max(begin, final)
            self._put(row, canvas.input_ids[place, begin:final].tolist(), finished)
            if not finished and hasattr(self.streamer, "put_draft"):
                window_end = min(int(run.schedule.active(canvas).end[place]), int(canvas.limit[place]))
                self.streamer.put_draft(value=canvas.input_ids[place, self._sent[row] : window_end].cpu())

    def _put(self, row: int, ids: list[int], finished: bool) -> None:
        if self.stop_strings is not None:
            held = self._held.setdefault(row, self.stop_strings())
            ids = held.feed(ids) + (held.finish() if finished else [])
        tagged = hasattr(self.streamer, "put_row")
        for token in ids:
            value = torch.tensor([token])
            self.streamer.put_row(row, value) if tagged else self.streamer.put(value)
        if finished and tagged:
            self.streamer.end_row(row)


def check_streamer(streamer: Any, batch: int) -> None:
    """Raises ValueError for a streamer that cannot take a batch of this size."""
    if streamer is not None and not (hasattr(streamer, "put") and hasattr(streamer, "end")):
        raise ValueError(f"`streamer` is a {type(streamer).__name__}, but must have the methods put and end.")
    if streamer is not None and batch > 1 and not hasattr(streamer, "put_row"):
        raise ValueError(
            f"`streamer` is a {type(streamer).__name__}, which takes one row, but the batch has {batch} (rows x "
            "num_return_sequences): use dllm_generate.RowStreamer."
        )
