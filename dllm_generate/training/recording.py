"""Records how a model decodes: which step committed which token, for answers that are right."""

import contextlib
import copy
import functools
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from ..decoders import DECODERS
from ..evaluation.prompts import Prompt
from ..evaluation.tasks import LONG_LEVEL, TASKS, check, training_problems
from ..registry import require
from ..text import decode, encode, special_ids, user
from .data import Batch, Example

_GRIDS, _COUNTS = ("prompt_ids", "answer_ids", "commit_step"), ("prompt_lengths", "answer_lengths", "canvas_lengths")
_TENSORS = (*_GRIDS, *_COUNTS)
_FIXED = ("eos_token_id", "infill", "stop_strings", "stopping_criteria", "return_dict_in_generate")


@dataclass(frozen=True)
class Trajectories:
    """N runs of decoding, each with the step that committed every token.

    Args:
        prompt_ids: (N, P) ids, filled up behind each prompt.
        prompt_lengths: (N,) tokens of the prompts.
        answer_ids: (N, G) ids of the whole canvas, also behind the first EOS.
        answer_lengths: (N,) tokens up to the first EOS, which counts; those of the canvas without one.
        commit_step: (N, G) step that committed the token, counted from 0.
        canvas_lengths: (N,) columns of the canvas.
        facts: how they were made, as plain JSON values; `mask_token_id` and `eos_token_id` among them.
    """

    prompt_ids: Tensor
    prompt_lengths: Tensor
    answer_ids: Tensor
    answer_lengths: Tensor
    commit_step: Tensor
    canvas_lengths: Tensor
    facts: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.prompt_ids)

    def save(self, path: str | Path) -> None:
        """Writes a safetensors file; the facts are in its metadata."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        tensors = {name: getattr(self, name).int().contiguous() for name in _TENSORS}
        save_file(tensors, path, {"facts": json.dumps(self.facts)})

    @classmethod
    def load(cls, path: str | Path) -> "Trajectories":
        """Reads what `save` wrote. Raises ValueError for a file of another kind."""
        with safe_open(path, "pt") as file:
            facts, names = (file.metadata() or {}).get("facts", ""), set(file.keys())
            require(facts and names == set(_TENSORS), "path", str(path), "a file of Trajectories.save")
            return cls(**{name: file.get_tensor(name).long() for name in _TENSORS}, facts=json.loads(facts))

    @classmethod
    def joined(cls, parts: "Sequence[Trajectories]") -> "Trajectories":
        """One after the other; the facts are those of the first."""
        made = {name: torch.cat([getattr(part, name) for part in parts]) for name in _COUNTS}
        for name in _GRIDS:
            grids = [getattr(part, name) for part in parts]
            width = max(grid.shape[1] for grid in grids)
            made[name] = torch.cat([F.pad(grid, (0, width - grid.shape[1])) for grid in grids])
        return cls(**made, facts=parts[0].facts)

    def rows(self, numbers: Sequence[int]) -> "Trajectories":
        """Some of them."""
        return replace(self, **{name: getattr(self, name)[list(numbers)] for name in _TENSORS})

    def example(self, row: int) -> Example:
        """Ids of the prompt and of the answer, its first EOS included."""
        prompt = self.prompt_ids[row, : self.prompt_lengths[row]]
        return prompt.tolist(), self.answer_ids[row, : self.answer_lengths[row]].tolist()

    def batch(self, rows: Sequence[int], seed: int = 0) -> "TrajectoryBatch":
        """Some of them, as a batch whose canvas is the recorded one."""
        some = self.rows(rows)
        room = int(some.canvas_lengths.max())
        cells = torch.arange(int(some.prompt_lengths.max()) + room) - some.prompt_lengths[:, None]
        prompt_ids = F.pad(some.prompt_ids, (0, cells.shape[1]))[:, : cells.shape[1]]
        ids = torch.where(cells < 0, prompt_ids, some.answer_ids.gather(1, cells.clamp(0, room - 1)))
        counts = (some.prompt_lengths, some.answer_lengths, some.canvas_lengths)
        return TrajectoryBatch(ids, *counts, seed, some.commit_step[:, :room])


@dataclass(frozen=True)
class TrajectoryBatch(Batch):
    """A `Batch` whose rows know when their tokens were committed.

    Args:
        commit_step: (B, G) step of each answer cell.
    """

    commit_step: Tensor = field(default_factory=lambda: torch.zeros(0, 0))


def training_prompts(
    tasks: Sequence[str] | None = None, n: int = 1000, seed: int = 0, level: int = LONG_LEVEL
) -> list[Prompt]:
    """Prompts of the bundled tasks that may be trained on; held-out ones never appear.

    Args:
        tasks: names of tasks; default all.
        n: number of prompts, over all tasks; no prompt twice.
        seed: the same seed gives the same prompts.
        level: 0 to 3; shorter answers than those of the level occur, too.

    Raises:
        ValueError: an unknown task, or tasks with too few different prompts.
    """
    unknown = sorted(set(tasks or ()) - set(TASKS))
    require(not unknown, "tasks", unknown, f"of {list(TASKS)}")
    found: dict[str, Prompt] = {}
    for problem in itertools.islice(training_problems(seed, tasks, level), 1000 * n):
        if len(found) >= n:
            break
        judge = functools.partial(check, problem)
        found.setdefault(problem.prompt, Prompt(problem.prompt, judge, problem.answer))
    require(len(found) == n, "n", n, f"at most {len(found)}, the different prompts at level {level}")
    return list(found.values())


def record(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    *,
    max_new_tokens: int,
    batch_size: int = 8,
    unverified: bool = False,
    progress: bool = False,
    **options: Any,
) -> Trajectories:
    """Decodes prompts and keeps the runs that end in a right answer.

    Decoding goes on behind an EOS, so that every state of the whole canvas is known; objectives use the states up to
    the one in which the text is complete.

    Args:
        model: with our `generate`; [`dllm_generate.bundled.load`] gives one.
        tokenizer: of the model.
        prompts: each with a judge of its answer (`Prompt.is_right`).
        max_new_tokens: columns of the canvas, in whole blocks.
        batch_size: rows of a call of generate. Default 8.
        unverified: keep every run, right or not; prompts then need no judge. Default False.
        progress: show a bar.
        options: of `generate`; a decoder that takes commits back records no trajectory.

    Returns:
        The kept runs, in the order of their prompts.

    Raises:
        ValueError: an option that is not allowed, or prompts without a judge, before the first forward; no run kept.
    """
    require(len(prompts) > 0, "prompts", list(prompts), "a list that is not empty")
    if not unverified:
        require(all(p.is_right for p in prompts), "prompts", "without a judge", "with one where `unverified` is False")
    _check(model, options)
    ids = special_ids(model, tokenizer, **options)
    parts: list[tuple[Tensor, ...]] = []
    with tqdm(total=len(prompts), disable=not progress, unit="prompt") as bar, _without_eos(model):
        for begin in range(0, len(prompts), batch_size):
            some = prompts[begin : begin + batch_size]
            parts += _runs(model, tokenizer, some, ids, unverified, {**options, "max_new_tokens": max_new_tokens})
            bar.update(len(some))
    if not parts:
        raise ValueError(f"None of the {len(prompts)} answers is right: there is no trajectory to learn from.")
    prompt_rows, answers, lengths, steps = zip(*parts)
    facts = {"mask_token_id": min(ids["mask"]), "eos_token_id": min(ids["eos"], default=0), "recorded": len(prompts)}
    return Trajectories(
        torch.nn.utils.rnn.pad_sequence(list(prompt_rows), batch_first=True),
        torch.tensor([len(row) for row in prompt_rows]),
        torch.stack(answers),
        torch.stack(lengths),
        torch.stack(steps),
        torch.full((len(parts),), len(answers[0])),
        {**facts, "options": {name: _plain(value) for name, value in options.items()}},
    )


def _runs(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    ids: dict[str, set[int]],
    unverified: bool,
    options: dict[str, Any],
) -> Iterator[tuple[Tensor, ...]]:
    inputs = {
        name: value.to(model.device) for name, value in encode(tokenizer, [user(p.text) for p in prompts]).items()
    }
    output = model.generate(**inputs, tokenizer=tokenizer, return_dict_in_generate=True, **options)
    width = inputs["input_ids"].shape[1]
    for prompt, row, real, steps in zip(
        prompts, output.sequences.cpu(), inputs["attention_mask"].cpu().bool(), output.commit_step.cpu()
    ):
        answer = row[width:]
        text = list(itertools.takewhile(lambda token: token not in ids["eos"], answer.tolist()))
        if unverified or prompt.is_right(decode(tokenizer, text, set().union(*ids.values()))):  # type: ignore[misc]
            yield row[:width][real], answer, torch.tensor(min(len(text) + 1, len(answer))), steps


def _check(model: Any, options: dict[str, Any]) -> None:
    for name in _FIXED:
        if options.get(name) is not None:
            raise ValueError(f"`{name}` is {options[name]!r}, but must be unset: recording sets it.")
    config, _ = model._prepare_generation_config(None, **options)
    decoder = DECODERS.find(config.decoder) if isinstance(config.decoder, str) else type(config.decoder)
    if decoder.revocable:
        fit = sorted(name for name, part in DECODERS.parts.items() if not part.revocable)
        raise ValueError(f"`decoder` is {config.decoder!r}, which takes commits back, but must be one of {fit}.")


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, (bool, int, float, str, list, dict)) else repr(value)


@contextlib.contextmanager
def _without_eos(model: Any) -> Iterator[None]:
    own = model.generation_config
    model.generation_config = copy.deepcopy(own)
    model.generation_config.eos_token_id = None
    try:
        yield
    finally:
        model.generation_config = own
