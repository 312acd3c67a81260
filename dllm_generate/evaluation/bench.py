"""Loop overhead and speed, measured."""

import dataclasses
import os
import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from ..backbone import body_of
from ..caches import POLICIES
from ..decoders import DECODERS
from ..families.llada import LLaDAConfig, LLaDAForMaskedDiffusion
from ..text import reply, user
from .harness import Config, answer_room, label
from .tasks import Problem, heldout_problems

# Without them the allocator gives memory back to the system and faults it in again, as often as it pleases.
FIXED_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MALLOC_TRIM_THRESHOLD_": "4294967296",
    "MALLOC_MMAP_THRESHOLD_": "4294967296",
}

SPEED_CONFIGS: tuple[Config, ...] = (
    {"decoder": "fixed"},
    {"decoder": "fixed", "cache_policy": "dual"},
    {"decoder": "threshold", "threshold": 0.9},
    {"decoder": "threshold", "threshold": 0.9, "cache_policy": "prefix"},
    {"decoder": "threshold", "threshold": 0.9, "cache_policy": "dual"},
    {"decoder": "factor", "cache_policy": "dual"},
)


@dataclasses.dataclass(frozen=True)
class Overhead:
    """CPU time of generate against that of its own forwards.

    Attributes:
        config: options of generate.
        ratio: median over the runs of (CPU time of the call) / (CPU time of body and head in that call).
        ratios: of the runs.
        forwards: of one call.
        forward_ms, loop_ms: medians per forward: of body and head, and of all else.
    """

    config: Config
    ratio: float
    ratios: list[float]
    forwards: int
    forward_ms: float
    loop_ms: float


@dataclasses.dataclass(frozen=True)
class Speed:
    """Speed of a configuration; medians over the runs.

    Attributes:
        config: options of generate.
        tokens_per_second, seconds: of one pass over the problems.
        tokens_per_forward: text tokens over forwards.
        ratio: tokens per second over those of the first configuration.
    """

    config: Config
    tokens_per_second: float
    seconds: float
    tokens_per_forward: float
    ratio: float


class ForwardClock:
    """Adds up the CPU time that the body and the head of a model take while the context is open."""

    def __init__(self, model: Any):
        self.modules = (body_of(model), model.get_output_embeddings())
        self.seconds = 0.0

    def __enter__(self) -> "ForwardClock":
        self._hooks = []
        for module in self.modules:
            self._hooks += [module.register_forward_pre_hook(self._start), module.register_forward_hook(self._stop)]
        return self

    def __exit__(self, *error: Any) -> None:
        for hook in self._hooks:
            hook.remove()

    def _start(self, *args: Any) -> None:
        self._begin = time.process_time()

    def _stop(self, *args: Any) -> None:
        self.seconds += time.process_time() - self._begin


def fixed_environment() -> dict[str, str] | None:
    """Returns the environment in which to measure, or None if this process already has it."""
    if all(name in os.environ for name in FIXED_ENVIRONMENT):
        return None
    return {**FIXED_ENVIRONMENT, **os.environ}


def larger_model() -> LLaDAForMaskedDiffusion:
    """A random LLaDA of 0.17 billion parameters, in float32 on the CPU."""
    return random_model(hidden_size=1024, num_hidden_layers=8, num_attention_heads=16, intermediate_size=2816)


def random_model(**sizes: int) -> LLaDAForMaskedDiffusion:
    """A random LLaDA with a vocabulary of 32,000, in float32 on the CPU. `sizes` are fields of [`LLaDAConfig`]."""
    torch.manual_seed(0)
    special = {"pad_token_id": 0, "eos_token_id": 1, "mask_token_id": 2}
    values: dict[str, Any] = {
        "vocab_size": 32000,
        "num_key_value_heads": sizes["num_attention_heads"],
        **special,
        **sizes,
    }
    return LLaDAForMaskedDiffusion(LLaDAConfig(**values)).eval()


def random_prompt(model: Any, length: int) -> torch.Tensor:
    """Returns ids `(1, length)` without the first 16, where special tokens lie."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(16, model.config.vocab_size, (1, length), generator=generator).to(model.device)


def overhead_configs(decoders: Sequence[str] | None = None) -> list[Config]:
    """What the overhead is measured of: every decoder with `"dual"`, one with every policy, and look-ahead.

    Args:
        decoders: only these, with `"dual"`.
    """
    if decoders is not None:
        return [{"decoder": name, "cache_policy": "dual"} for name in decoders]
    others = [name for name in sorted(POLICIES.parts) if name not in ("dual", "block")]
    policies = [{"decoder": "threshold", "cache_policy": name} for name in others]
    ahead = [{"decoder": "fixed", "cache_policy": "dual", "lookahead": True}]
    return overhead_configs(sorted(DECODERS.parts)) + policies + ahead


def measure_overhead(
    model: Any,
    configs: Sequence[Config] | None = None,
    *,
    runs: int = 3,
    prompt_length: int = 64,
    new_tokens: int = 256,
    progress: bool = False,
) -> list[Overhead]:
    """Measures the loop: batch 1, blocks of 32, EOS banned so that lengths are equal.

    Run it with one thread, on a float32 model, and with [`fixed_environment`].

    Args:
        model: with our `generate`, on the CPU.
        configs: options of generate; default [`overhead_configs`].
        runs: measured calls per configuration, after a short one that is not.
        prompt_length, new_tokens: tokens.
        progress: show a bar.
    """
    prompt = random_prompt(model, prompt_length)
    options = {"max_new_tokens": new_tokens, "min_new_tokens": new_tokens, "block_length": 32}
    results = []
    for config in configs or overhead_configs():
        _timed_call(model, prompt, **config, **options | {"max_new_tokens": 32, "min_new_tokens": 32})
        calls = [
            _timed_call(model, prompt, **config, **options)
            for _ in tqdm(range(runs), desc=f"overhead {label(config)}", disable=not progress)
        ]
        ratios = [total / forward for total, forward, _ in calls]
        forwards = calls[0][2]
        forward_ms = 1e3 * statistics.median(forward for _, forward, _ in calls) / forwards
        loop_ms = 1e3 * statistics.median(total - forward for total, forward, _ in calls) / forwards
        results.append(Overhead(config, statistics.median(ratios), ratios, forwards, forward_ms, loop_ms))
    return results


def _timed_call(model: Any, prompt: torch.Tensor, **options: Any) -> tuple[float, float, int]:
    """CPU seconds of the call, CPU seconds of its forwards, and their number."""
    with ForwardClock(model) as clock:
        begin = time.process_time()
        output = model.generate(prompt, return_dict_in_generate=True, **options)
        total = time.process_time() - begin
    return total, clock.seconds, int(output.num_forwards[0])


def measure_speed(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    configs: Sequence[Config] = SPEED_CONFIGS,
    *,
    runs: int = 3,
    n: int = 2,
    problems: Sequence[Problem] | None = None,
    progress: bool = False,
) -> list[Speed]:
    """Measures tokens per second at batch 1 on the prompts of held-out problems.

    The configurations take turns in every run, so that a machine that slows down slows all of them.

    Args:
        model, tokenizer: with our `generate`.
        configs: options of generate.
        runs: measured passes, after one that is not.
        n: problems per task.
        problems: instead of `n`.
        progress: show a bar.
    """
    problems = list(problems or heldout_problems(n=n))
    room = answer_room(tokenizer, problems)
    passes: list[list[tuple[float, int, int]]] = [[] for _ in configs]
    with tqdm(total=(1 + runs) * len(configs), desc="speed", disable=not progress) as bar:
        for _ in range(1 + runs):
            for config, timings in zip(configs, passes, strict=True):
                bar.set_postfix_str(label(config))
                timings.append(_timed_pass(model, tokenizer, problems, {"max_new_tokens": room, **config}))
                bar.update()
    speeds = [statistics.median(tokens / seconds for seconds, tokens, _ in timings[1:]) for timings in passes]
    return [
        Speed(
            config,
            speed,
            statistics.median(seconds for seconds, _, _ in timings[1:]),
            timings[-1][1] / timings[-1][2],
            speed / speeds[0],
        )
        for config, timings, speed in zip(configs, passes, speeds, strict=True)
    ]


def _timed_pass(
    model: Any, tokenizer: PreTrainedTokenizerBase, problems: Sequence[Problem], options: Config
) -> tuple[float, int, int]:
    """Seconds, text tokens and forwards of one pass."""
    replies = [reply(model, tokenizer, [user(p.prompt)], **options)[0] for p in problems]
    return sum(r.seconds for r in replies), sum(r.tokens for r in replies), sum(r.forwards for r in replies)
