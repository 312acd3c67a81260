"""Records how a model decodes: which step committed which token, for answers that are right."""

import contextlib
import copy
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from ..decoders import DECODERS
from ..evaluation.prompts import Prompt
from ..evaluation.tasks import LONG_LEVEL, TASKS, check, training_problems
from ..registry import is_int, require
from ..text import decode, encode, special_ids, user
from .paths import Trajectories

__all__ = ["Trajectories", "record", "training_prompts"]

# What would cut runs off, or multiply their rows.
_CUTTING = ("infill", "stop_strings", "max_time", "num_return_sequences")
_SET_HERE = (
    "eos_token_id", "stopping_criteria", "return_dict_in_generate", "generation_config", "custom_generate", "inputs",
    "input_ids", "inputs_embeds", "attention_mask", "tokenizer",
)  # fmt: skip


def training_prompts(
    tasks: Sequence[str] | None = None, n: int = 1000, seed: int = 0, level: int = LONG_LEVEL
) -> list[Prompt]:
    """Prompts of the bundled tasks that may be trained on; held-out ones never appear.

    Args:
        tasks: names of tasks; default those with short answers.
        n: number of prompts, over all tasks; no prompt twice.
        seed: the same seed gives the same prompts.
        level: 0 to 3; shorter answers than those of the level occur, too.

    Raises:
        ValueError: an unknown task, another `n` or `level`, or tasks with too few different prompts.
    """
    require(tasks is None or isinstance(tasks, (list, tuple, dict)), "tasks", tasks, "a list of names, or None")
    unknown = [task for task in tasks or () if task not in list(TASKS)]
    require(not unknown, "tasks", unknown, f"of {list(TASKS)}")
    require(is_int(n) and n >= 1, "n", n, "an int of at least 1")
    require(is_int(level) and 0 <= level <= LONG_LEVEL, "level", level, f"an int from 0 to {LONG_LEVEL}")
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
        options: of `generate`; a decoder that takes commits back records no trajectory. Neither they nor the model's
            own generation config may end runs early or return several rows of a prompt.

    Returns:
        The kept runs, in the order of their prompts.

    Raises:
        ValueError: an option that is not allowed, or prompts without a judge, before the first forward; no run kept.
    """
    require(len(prompts) > 0, "prompts", list(prompts), "a list that is not empty")
    require(all(isinstance(p, Prompt) for p in prompts), "prompts", list(prompts)[:3], "a list of `Prompt`")
    require(is_int(batch_size) and batch_size >= 1, "batch_size", batch_size, "an int of at least 1")
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
    for name in _SET_HERE:
        value = options.get(name)
        if value is not None:
            shown = repr(value) if isinstance(value, (int, str, list)) else f"a {type(value).__name__}"
            reason = "give its fields as options" if name == "generation_config" else "recording sets it"
            raise ValueError(f"`{name}` is {shown}, but must be unset: {reason}.")
    config, _ = model._prepare_generation_config(None, **options)
    for name in _CUTTING:
        value = getattr(config, name, None)
        fits = not value or (name == "num_return_sequences" and value == 1)
        place = "" if options.get(name) is not None else ", from the model's generation config"
        require(fits, name, value, f"unset, so that a prompt is one run that ends by itself{place}")
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
