"""Names of the options, and what each may be on its own."""

from collections.abc import Mapping
from typing import Any

from transformers import GenerationConfig

from .caches import POLICIES
from .decoders import DECODERS
from .registry import Registry, is_int, is_number, require
from .schedules import SCHEDULES

PRESETS = ("published", "quality", "balanced", "speed")
KINDS: tuple[Registry, ...] = (DECODERS, SCHEDULES, POLICIES)
FLAT_HYPER_PARAMETERS = ("block_length", "steps", "steps_per_block", "threshold")
OWN_FIELDS = (
    *("decoder", "schedule", "cache_policy", "decoder_config", "schedule_config", "policy_config"),
    *FLAT_HYPER_PARAMETERS,
    *("smoothing", "infill", "preset", "mask_token_id", "logits_shift", "attention"),
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
    "compile_config": None,
    "output_attentions": False,
    "output_hidden_states": False,
    "output_logits": False,
}


def validate_sampling(config: GenerationConfig) -> None:
    """Checks transformers' options where it lets impossible values pass."""
    value = config.temperature
    require(value is None or (is_number(value) and value >= 0), "temperature", value, "a number >= 0")
    value = config.top_p
    require(value is None or (is_number(value) and 0 < value <= 1), "top_p", value, "a number in (0, 1]")
    value = config.top_k
    require(value is None or (is_int(value) and value >= 0), "top_k", value, "an int >= 0")
    value = config.min_new_tokens
    require(value is None or (is_int(value) and value >= 0), "min_new_tokens", value, "an int >= 0")
    value = config.guidance_scale
    require(value is None or is_number(value), "guidance_scale", value, "a number")


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
