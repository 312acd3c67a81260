"""Live drafts on a terminal."""

import time
from collections.abc import Sequence

import torch
from rich.console import Console
from rich.live import Live
from rich.text import Text
from transformers import PreTrainedTokenizerBase
from transformers.generation.streamers import BaseStreamer

from ..text import decode

OPEN_POSITION = "·"


class LiveDrafts(BaseStreamer):
    """Shows final text bright, and behind it the block in work: committed tokens dim, open positions as dots.

    Takes one row. The display vanishes at the end.

    Args:
        tokenizer: decodes the ids.
        special: ids of `"mask"`, `"eos"` and `"pad"`.
        console: of the terminal.
        delay: seconds to wait after every step, so that a small model can be followed.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        special: dict[str, set[int]],
        console: Console,
        delay: float = 0.0,
    ):
        self.tokenizer, self.special, self.delay = tokenizer, special, delay
        self.no_text = set().union(*special.values())
        self.final: list[int] = []
        self.draft: list[int] = []
        self.live = Live(console=console, transient=True, get_renderable=self.render, refresh_per_second=20)

    def put(self, value: torch.Tensor) -> None:
        """Receives the prompt `(1, P)`, then final tokens `(n,)`."""
        if value.dim() > 1:
            self.live.start()
            return
        self.final += value.tolist()
        self.draft = self.draft[value.numel() :]

    def put_draft(self, value: torch.Tensor) -> None:
        """Receives what stands behind the final tokens now, up to the end of the block in work."""
        self.draft = value.tolist()
        time.sleep(self.delay)

    def end(self) -> None:
        """Removes the display."""
        self.live.stop()

    def render(self) -> Text:
        """What is to be seen now."""
        text = Text().append(decode(self.tokenizer, self.final, self.no_text), style="bold")
        for run in _runs(self.draft, self.special["mask"]):
            if run[0] in self.special["mask"]:
                text.append(OPEN_POSITION * len(run), style="dim")
                continue
            end = next((place for place, token in enumerate(run) if token in self.special["eos"]), None)
            text.append(decode(self.tokenizer, run[:end], self.no_text), style="dim italic")
            if end is not None:
                break
        return text


def _runs(ids: Sequence[int], mask: set[int]) -> list[list[int]]:
    """Splits ids where open positions begin or end."""
    runs: list[list[int]] = []
    for token in ids:
        if runs and (runs[-1][-1] in mask) == (token in mask):
            runs[-1].append(token)
        else:
            runs.append([token])
    return runs
