"""Names of the options, and what each may be on its own."""

import math
from collections.abc import Mapping
from typing import Any

from transformers import GenerationConfig

from .caches import POLICIES
from .decoders import DECODERS
from .registry import Registry, is_int, is_number, require
from .schedules import SCHEDULES

KINDS: tuple[Registry, ...] = (DECODERS, SCHEDULES, POLICIES)
FLAT_HYPER_PARAMETERS = ("block_length", "steps", "steps_per_block", "threshold")
OWN_FIELDS = (
    *("decoder", "schedule", "cache_policy", "decoder_config", "schedule_config", "policy_config"),
    *FLAT_HYPER_PARAMETERS,
    *("smoothing", "lookahead", "unroll_steps", "infill", "preset", "mask_token_id", "logits_shift", "attention"),
)
# Ways to decode that belong to left-to-right models; value that means "off" besides None.
AUTOREGRESSIVE_ONLY: dict[str, Any] = {
    "num_beams": 1,
    "use_mtp": False,
    "prompt_lookup_num_tokens": None,
    "assistant_early_exit": None,
    "is_assistant": False,
    "token_healing": False,
    "penalty_alpha": None,
    "dola_layers": None,
    "low_memory": False,
    "num_beam_groups": 1,
    "diversity_penalty": 0.0,
    "constraints": None,
    "force_words_ids": None,
    "prefill_chunk_size": None,
    "watermarking_config": None,
    "cache_config": None,
    "output_attentions": False,
    "output_hidden_states": False,
    "output_logits": False,
}


def is_sampling(config: GenerationConfig) -> bool:
    """Whether tokens are drawn. At a temperature this low the draw is the most likely token."""
    return bool(config.do_sample) and config.temperature is not None and config.temperature > 1e-5


def validate_sampling(config: GenerationConfig) -> None:
    """Checks transformers' options where it lets impossible values pass."""
    finite = lambda value: is_number(value) and math.isfinite(value)
    allowed = {
        "temperature": (lambda v: finite(v) and v >= 0, "a number >= 0, and finite"),
        "top_p": (lambda v: is_number(v) and 0 < v <= 1, "a number in (0, 1]"),
        "top_k": (lambda v: is_int(v) and v >= 0, "an int >= 0"),
        "min_new_tokens": (lambda v: is_int(v) and v >= 0, "an int >= 0"),
        "max_new_tokens": (lambda v: is_int(v) and v > 0, "an int greater than 0"),
        "max_length": (lambda v: is_int(v) and v > 0, "an int > 0"),
        "max_time": (lambda v: finite(v) and v > 0, "a number of seconds > 0"),
        "guidance_scale": (finite, "a finite number"),
        "num_return_sequences": (lambda v: is_int(v) and v > 0, "an int > 0"),
        "eos_token_id": (lambda v: is_int(v) or _are_ids(v), "a token id or a list of them"),
        "pad_token_id": (is_int, "a token id"),
        "suppress_tokens": (_are_ids, "a list of token ids"),
        "begin_suppress_tokens": (_are_ids, "a list of token ids"),
        "stop_strings": (_are_texts, "a text, or a list of texts, none of them empty"),
    }
    for option, (holds, wanted) in allowed.items():
        value = getattr(config, option)
        require(value is None or holds(value), option, value, wanted)


def _are_ids(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(is_int(item) for item in value)


def _are_texts(value: Any) -> bool:
    texts = [value] if isinstance(value, str) else value
    return isinstance(texts, (list, tuple)) and bool(texts) and all(isinstance(t, str) and t for t in texts)


def refuse_unknown(names: set[str]) -> None:
    """Raises ValueError for options that do not exist, and says where a hyper-parameter belongs."""
    if not names:
        return
    homes = {key: place for kind in KINDS for key, place in kind.homes().items()}
    hints = [f"`{name}` is a hyper-parameter: pass {homes[name]}" for name in sorted(names) if name in homes]
    raise ValueError(f"Unknown generation options: {sorted(names)}. " + "; ".join(hints))


def refuse_autoregressive(values: Mapping[str, Any]) -> None:
    """Raises ValueError for options that only left-to-right decoding can honour."""
    for name, off in AUTOREGRESSIVE_ONLY.items():
        value = values.get(name)
        if value is not None and value != off:
            raise ValueError(f"`{name}` is {value!r}, but diffusion decoding does not support it: leave it None.")
    storage, allowed = values.get("cache_implementation"), (None, "dynamic", "static")
    require(storage in allowed, "cache_implementation", storage, f"one of {allowed}")
