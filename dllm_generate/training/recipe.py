"""What a training run is made of: every setting, checked before anything is loaded."""

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ..families import Family
from ..families.base import ATTENTION_KINDS
from ..registry import is_int, is_number, require, settings_of
from .objectives import OBJECTIVES, Mixture, Objective
from .optimizers import OPTIMIZERS
from .reading import parse, put
from .sources import SOURCES, Source

SCHEDULES = ("constant", "linear", "cosine", "warmup_stable_decay")
DTYPES = ("float32", "bfloat16")
FACTS = ("mask_token_id", "logits_shift", "attention")
# Facts that objectives are given, with values that stand in until the model is known.
STAND_INS = {"mask_token_id": 0, "logits_shift": False, "block_length": None, "prompt_is_one_block": True}

GIVEN = ("mask_token_id", "logits_shift", "prompt_is_one_block")


@dataclass(frozen=True)
class Lora:
    """Low-rank adapters instead of all weights (peft; arXiv 2106.09685).

    Args:
        r: rank.
        alpha: scale of the adapter is alpha / r.
        dropout: of the adapter's input.
        targets: names of the layers, or `"all-linear"`.
        merge: write the merged model as well.

    Raises:
        ValueError: for values out of range.
    """

    r: int = 16
    alpha: float = 32
    dropout: float = 0.0
    targets: list[str] | str = "all-linear"
    merge: bool = False

    def __post_init__(self) -> None:
        require(is_int(self.r) and self.r >= 1, "lora.r", self.r, "an int of at least 1")
        require(is_number(self.alpha) and self.alpha > 0, "lora.alpha", self.alpha, "a number above 0")
        good = is_number(self.dropout) and 0 <= self.dropout < 1
        require(good, "lora.dropout", self.dropout, "a number from 0 up to, but not 1")
        names = isinstance(self.targets, list) and self.targets and all(isinstance(t, str) for t in self.targets)
        allowed = "'all-linear' or a list of names of layers"
        require(bool(names) or self.targets == "all-linear", "lora.targets", self.targets, allowed)
        require(isinstance(self.merge, bool), "lora.merge", self.merge, "true or false")


@dataclass(frozen=True)
class Recipe:
    """Every setting of a training run; docs/training.md has a table of them.

    Args:
        output: folder of the run.
        model: local folder or Hub id; None is the bundled model.
        family: `mask_token_id`, `logits_shift`, `attention` of a model of no known family.
        objective: name, dict of `name` and settings, or a list of these dicts with `weight`, drawn for each batch.
        data: path of a .jsonl file, or a dict of `name` (tasks, jsonl, datasets) and settings.
        lora: None trains all weights; a dict of [`Lora`]'s fields, or true.
        optimizer: `"adamw"`; `"muon"` (for the matrices inside the layers, Adam for the rest).
        learning_rate, muon_learning_rate: of AdamW or Adam, and of Muon.
        weight_decay, max_grad_norm: 0 is off.
        schedule, warmup, decay: shape of the learning rate, steps to its peak, share of the run in which
            `warmup_stable_decay` falls.
        steps: optimizer steps.
        rows, parts: examples per step, and forwards per step, over all processes.
        max_length: tokens of prompt and answer; longer examples are left out.
        dtype, bf16: of the weights; whether forwards run in bfloat16 autocast.
        gradient_checkpointing, compile, seed, trust_remote_code: as in transformers.
        save_every, log_every, keep: steps between checkpoints and between lines of metrics.jsonl; checkpoints to keep.

    Raises:
        ValueError: naming the key, its value and what is allowed.

    Example:
        >>> Recipe(output="runs/mine", data="chat.jsonl", lora={"r": 8}, steps=500)
    """

    output: str
    model: str | None = None
    family: dict[str, Any] = field(default_factory=dict)
    objective: str | dict[str, Any] | list[dict[str, Any]] = "masked_diffusion"
    data: str | dict[str, Any] = "tasks"
    lora: Any = None
    optimizer: str = "adamw"
    learning_rate: float = 1e-4
    muon_learning_rate: float = 0.01
    weight_decay: float = 0.1
    max_grad_norm: float = 1.0
    schedule: str = "cosine"
    warmup: int = 0
    decay: float = 0.2
    steps: int = 1000
    rows: int = 16
    parts: int = 4
    max_length: int = 1024
    dtype: str = "float32"
    bf16: bool = False
    gradient_checkpointing: bool = False
    compile: bool = False
    seed: int = 0
    save_every: int = 100
    log_every: int = 10
    keep: int = 2
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        for key in ("output", "model"):
            value = getattr(self, key)
            allowed = "a text that is not empty" + (", or null" if key == "model" else "")
            require((isinstance(value, str) and bool(value)) or (value, key) == (None, "model"), key, value, allowed)
        for key, choices in (("optimizer", OPTIMIZERS), ("schedule", SCHEDULES), ("dtype", DTYPES)):
            require(getattr(self, key) in choices, key, getattr(self, key), f"one of {list(choices)}")
        for key in ("steps", "rows", "parts", "max_length", "save_every", "log_every", "keep"):
            _count(self, key, 1)
        for key in ("warmup", "seed"):
            _count(self, key, 0)
        # transformers seeds numpy as well.
        require(self.seed < 2**32, "seed", self.seed, "an int below 2 ** 32")
        for key in ("learning_rate", "muon_learning_rate", "weight_decay", "max_grad_norm", "decay"):
            value = getattr(self, key)
            low = is_number(value) and math.isfinite(value) and value >= 0 and (value > 0 or "rate" not in key)
            require(low, key, value, f"a number {'above' if 'rate' in key else 'of at least'} 0")
        for key in ("bf16", "gradient_checkpointing", "compile", "trust_remote_code"):
            require(isinstance(getattr(self, key), bool), key, getattr(self, key), "true or false")
        require(self.decay <= 1, "decay", self.decay, "a number from 0 to 1")
        require(self.warmup <= self.steps, "warmup", self.warmup, f"at most `steps`, which is {self.steps}")
        require(self.rows % self.parts == 0, "parts", self.parts, f"a divisor of `rows`, which is {self.rows}")
        object.__setattr__(self, "lora", _lora(self.lora))
        _check_family(self.family)
        if self.make_objective().needs_adapter and self.lora is None:
            raise ValueError(
                "`lora` is None, but must be given for an objective whose teacher is the model without its adapter; or "
                "give `objective.teacher`, the folder or Hub id of a frozen model."
            )
        self.make_source()

    @classmethod
    def read(cls, source: "Recipe | str | Path | Mapping[str, Any]", **changes: Any) -> "Recipe":
        """Makes a recipe of a .yaml or .json file, or of a dict.

        Args:
            source: path or dict; a recipe is taken as it is.
            changes: keys that replace those of the source; a dot leads into a dict, as in `{"lora.r": 8}`.

        Raises:
            ValueError: no such kind of file, no mapping of keys to plain values, an unknown key, and as the class.
            OSError: a file that cannot be read.
        """
        found: Any = source.to_dict() if isinstance(source, cls) else source
        found = parse(Path(found)) if isinstance(found, (str, Path)) else found
        require(isinstance(found, Mapping), "recipe", found, "a mapping of keys to values")
        try:
            values = json.loads(json.dumps(dict(found)))
        except TypeError as error:
            raise ValueError(f"The recipe holds what is no plain JSON value: {error}.") from error
        for key, value in changes.items():
            put(values, key, value)
        known = [f.name for f in dataclasses.fields(cls)]
        for key, value in values.items():
            if key not in known:
                raise ValueError(f"The recipe has the key {key!r} with the value {value!r}, but only takes {known}.")
        require("output" in values, "output", None, "the folder of the run")
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """All keys as plain JSON values."""
        return dataclasses.asdict(self)

    def save(self, file: Path) -> None:
        """Writes the recipe as YAML."""
        file.write_text(yaml.safe_dump(self.to_dict(), sort_keys=False), encoding="utf-8")

    def make_source(self) -> Source:
        """The source of the examples; nothing is read yet."""
        spec = {"name": "jsonl", "file": self.data} if _is_file(self.data) else self.data
        return SOURCES.build(*_named("data", spec))

    def make_objective(self, family: Family | None = None) -> Objective:
        """The objective for a model of `family`; None stands in for what is not known yet."""
        facts = STAND_INS if family is None else {key: getattr(family, key) for key in STAND_INS}
        specs = self.objective if isinstance(self.objective, list) else [self.objective]
        require(len(specs) > 0, "objective", self.objective, "a name, a dict or a list of dicts, not empty")
        made, weights = [], []
        for spec in specs:
            name, settings = _named("objective", spec)
            weight = settings.pop("weight", 1.0) if len(specs) > 1 else 1.0
            require(is_number(weight) and weight > 0, "objective.weight", weight, "a number above 0")
            known = [key for key in OBJECTIVES.fields(name) if key not in GIVEN]
            for key, value in settings.items():
                place = " Facts of the model belong in `family`." if key in GIVEN else ""
                if key not in known:
                    raise ValueError(f"`objective.{key}` is {value!r}, but {name!r} only takes {known}.{place}")
            made.append(OBJECTIVES.build(name, settings, **{k: v for k, v in facts.items() if k not in settings}))
            weights.append(weight)
        objective = made[0] if len(made) == 1 else Mixture(made, weights)
        if family is not None:
            objective.validate(family)
        return objective

    @property
    def needs_family(self) -> bool:
        """Whether an objective asks for facts of the model's family, as all but causal ones do."""
        specs = self.objective if isinstance(self.objective, list) else [self.objective]
        return any(set(OBJECTIVES.fields(_named("objective", spec)[0])) & set(STAND_INS) for spec in specs)


def _count(part: Any, key: str, low: int) -> None:
    value = getattr(part, key)
    require(is_int(value) and value >= low, key, value, f"an int of at least {low}")


def _lora(value: Any) -> Lora | None:
    return value if isinstance(value, Lora) else settings_of(Lora, "lora", value)


def _check_family(family: Any) -> None:
    require(isinstance(family, dict) and set(family) <= set(FACTS), "family", family, f"a dict with keys of {FACTS}")
    for key, allowed in (("attention", ATTENTION_KINDS), ("logits_shift", (True, False))):
        require(family.get(key) in (None, *allowed), f"family.{key}", family.get(key), f"one of {list(allowed)}")
    mask = family.get("mask_token_id")
    require(mask is None or (is_int(mask) and mask >= 0), "family.mask_token_id", mask, "an int of at least 0")


def _named(key: str, spec: Any) -> tuple[str, dict[str, Any]]:
    settings = {"name": spec} if isinstance(spec, str) else spec
    require(isinstance(settings, dict) and "name" in settings, key, spec, "a name, or a dict with a `name`")
    return settings["name"], {k: v for k, v in settings.items() if k != "name"}


def _is_file(data: Any) -> bool:
    return isinstance(data, str) and data.lower().endswith(".jsonl")
