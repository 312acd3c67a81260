"""The figures of a run, a JSON object per line."""

import json
import time
from pathlib import Path
from typing import Any

from tqdm import tqdm
from transformers import TrainerCallback

from ..registry import is_int


class MetricsFile(TrainerCallback):
    """Writes step, loss, gradient norm, learning rate, tokens and seconds to a file, in the first process alone.

    A resumed run drops what lies behind its checkpoint, and goes on counting seconds where that was written.

    Args:
        file: path of the .jsonl file.
    """

    def __init__(self, file: Path):
        self.file, self.offset, self.begin = file, 0.0, time.perf_counter()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            kept = [line for line in read_metrics(self.file) if line["step"] <= state.global_step]
            self.file.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
            self.offset = kept[-1].get("seconds", 0.0) if kept else 0.0
        self.begin = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_log = control.should_log or state.global_step >= state.max_steps

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if not state.is_world_process_zero or logs is None or "loss" not in logs:
            return
        line: dict[str, Any] = {"step": state.global_step}
        line |= {name: float(logs[name]) for name in ("loss", "grad_norm", "learning_rate") if name in logs}
        line["tokens"] = state.num_input_tokens_seen
        line["seconds"] = round(self.offset + time.perf_counter() - self.begin, 2)
        with self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


class ProgressBar(TrainerCallback):
    """A bar over the steps with the last loss, in the first process alone; nothing goes to stdout."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        first = state.is_world_process_zero
        self.bar = tqdm(total=state.max_steps, initial=state.global_step, disable=not first, unit="step")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.bar.update(state.global_step - self.bar.n)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if logs and "loss" in logs:
            self.bar.set_postfix(loss=f"{float(logs['loss']):.4f}")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.bar.close()


def read_metrics(file: Path) -> list[dict[str, Any]]:
    """The lines of a file of metrics; none if there is no file. A line that is cut off or has no step is left out."""
    lines = []
    for text in file.read_text(encoding="utf-8").splitlines() if file.is_file() else ():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict) and is_int(line.get("step")):
            lines.append(line)
    return lines
