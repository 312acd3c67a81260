"""The systems that are compared: ways to decode, each with the model that it is for."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

from transformers import CompileConfig

from ..bundled import bundled_model, load, load_as_it_is
from ..text import Reply, decode, encode, reply, user
from .harness import Config
from .tasks import Problem

# What all rows decode but the distilled and the causal ones; the distilled ones were made of it.
TEACHER = "dllm-tiny-long"
THRESHOLD: Config = {"decoder": "threshold", "threshold": 0.9}
BLOCK_CAUSAL: Config = {"attention": "block_causal", "cache_policy": "block"}
D2F: Config = {
    "decoder": "threshold",
    "threshold": 0.99,
    **BLOCK_CAUSAL,
    "block_length": 16,
    "schedule": "pipelined",
    "schedule_config": {"block_add_threshold": 0.1, "decoded_token_threshold": 0.5},
}


@dataclasses.dataclass(frozen=True)
class Contender:
    """A way to decode, and the model that it is for.

    Attributes:
        name: of the row.
        model: folder in `model_cards/`.
        options: of generate.
        causal: decoded by transformers' own generate, one token per forward.
        compiled: forwards are compiled, over a static cache.
        slow: a long answer takes minutes, so that its accuracy is measured on fewer of them.
    """

    name: str
    model: str
    options: Config
    causal: bool = False
    compiled: bool = False
    slow: bool = False


CONTENDERS: tuple[Contender, ...] = (
    Contender("LLaDA, one token per step", TEACHER, {"decoder": "fixed", "cache_policy": "none"}, slow=True),
    Contender("Fast-dLLM, threshold", TEACHER, {**THRESHOLD, "cache_policy": "none"}),
    Contender("Fast-dLLM, prefix", TEACHER, {**THRESHOLD, "cache_policy": "prefix"}),
    Contender("Fast-dLLM, dual", TEACHER, {**THRESHOLD, "cache_policy": "dual"}),
    Contender("dInfer, credit, vicinity", TEACHER, {**THRESHOLD, "decoder": "credit", "cache_policy": "vicinity"}),
    Contender(
        "dInfer, hierarchical, smoothing, vicinity",
        TEACHER,
        {**THRESHOLD, "decoder": "hierarchical", "smoothing": True, "cache_policy": "vicinity"},
    ),
    Contender("block diffusion", TEACHER, {**THRESHOLD, "schedule": "block_diffusion", **BLOCK_CAUSAL}),
    Contender("D2F, pipelined", "dllm-tiny-d2f", D2F),
    Contender("D2F, pipelined, compiled", "dllm-tiny-d2f", D2F, compiled=True),
    Contender(
        "trajectory-distilled",
        "dllm-tiny-long-td",
        {"decoder": "threshold", "threshold": 0.995, "block_length": 96, "cache_policy": "dual"},
    ),
    Contender("autoregressive, dynamic cache", "dllm-tiny-ar", {}, causal=True),
    Contender("autoregressive, static cache", "dllm-tiny-ar", {"cache_implementation": "static"}, causal=True),
    Contender("autoregressive, static, compiled", "dllm-tiny-ar", {}, causal=True, compiled=True),
)


Answer = Callable[[Sequence[Problem], Config], list[Reply]]


def answers_of(contender: Contender, dtype: str) -> Answer:
    """Loads a contender; returns a function from problems and further options of generate to replies, as one batch."""
    folder, options = bundled_model(contender.model), dict(contender.options)
    if contender.compiled:
        compile_config: Any = CompileConfig(mode="default", fullgraph=True, dynamic=False)
        # transformers compiles on a CPU only when told so.
        compile_config._compile_all_devices = True
        options |= {"cache_implementation": "static", "compile_config": compile_config}
    if not contender.causal:
        model, tokenizer = load(folder, dtype=dtype, device="cpu")
        return lambda problems, more: reply(model, tokenizer, [user(p.prompt) for p in problems], **{**options, **more})
    model, tokenizer = load_as_it_is(folder, dtype=dtype, device="cpu", trust_remote_code=False)
    return lambda problems, more: _causal_replies(model, tokenizer, problems, {**options, **more})


def _causal_replies(model: Any, tokenizer: Any, problems: Sequence[Problem], options: Config) -> list[Reply]:
    inputs = encode(tokenizer, [user(p.prompt) for p in problems])
    width = inputs["input_ids"].shape[1]
    begin = time.perf_counter()
    rows = model.generate(**inputs, do_sample=False, **options)[:, width:].tolist()
    seconds = time.perf_counter() - begin
    eos = tokenizer.eos_token_id
    made = []
    for row in rows:
        ended = eos in row
        text = row[: row.index(eos)] if ended else row
        made.append(
            Reply(decode(tokenizer, text, {eos}), len(text), len(text) + ended, seconds, "eos" if ended else "length")
        )
    return made
