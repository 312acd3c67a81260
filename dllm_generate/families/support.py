"""Which decoders, schedules and cache policies a family works with: what the parts themselves say."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from ..caches import POLICIES
from ..config import DiffusionGenerationConfig
from ..decoders import DECODERS
from ..options import KINDS
from ..registry import require
from ..schedules import SCHEDULES
from .base import Entry, Family, registered_families
from .presets import default_presets, preset_of

FACTS = ("family", "model_type", "published class", "native class", "attention", "blocks", "shift")
PARTS = ("family", "schedules", "cache policies", "decoders", "presets")
PRESET = ("schedule", "block_length", "decoder", "threshold", "cache_policy", "further")
Combination = tuple[str, str, str]
GENERATED = re.compile(
    r"(<!-- generated: dllm-generate families ?(\S*) --markdown -->\n).*?(<!-- end -->)", flags=re.DOTALL
)


@dataclass(frozen=True)
class Support:
    """A family, and what works with it.

    Attributes:
        family: the facts.
        model_type: in config.json.
        published: class names in the config.json of published checkpoints.
        native: name of the class that this package has for it; empty for a family without one.
        combinations: (schedule, cache policy, decoder) of which no part refuses the family or the others.
        presets: names that `preset` may have.
    """

    family: Family
    model_type: str
    published: tuple[str, ...]
    native: str
    combinations: frozenset[Combination]
    presets: tuple[str, ...]

    @property
    def schedules(self) -> tuple[str, ...]:
        """Those of any combination."""
        return self._column(0)

    @property
    def policies(self) -> tuple[str, ...]:
        """Cache policies of any combination."""
        return self._column(1)

    @property
    def decoders(self) -> tuple[str, ...]:
        """Those of any combination."""
        return self._column(2)

    def _column(self, column: int) -> tuple[str, ...]:
        return tuple(sorted({combination[column] for combination in self.combinations}))

    def schedules_of(self, name: str) -> tuple[str, ...]:
        """The schedules with which a cache policy or decoder works."""
        return tuple(sorted({combination[0] for combination in self.combinations if name in combination}))

    def row(self) -> dict[str, str]:
        """Texts for [`FACTS`] and [`PARTS`], in Markdown."""
        family = self.family
        return {
            "family": _code(family.name),
            "model_type": _code(self.model_type),
            "published class": _code(*self.published),
            "native class": _code(self.native) if self.native else "as published",
            "attention": _code(family.attention),
            "blocks": "free" if family.block_length is None else f"{family.block_length}, or what the config says",
            "shift": "yes" if family.logits_shift else "no",
            "schedules": _code(*self.schedules),
            "cache policies": ", ".join(self._with_limits(name) for name in self.policies),
            "decoders": self._decoders(),
            "presets": _code(*self.presets),
        }

    def _with_limits(self, name: str) -> str:
        only = self.schedules_of(name)
        return _code(name) + ("" if only == self.schedules else f" (only {_code(*only)})")

    def _decoders(self) -> str:
        texts = [f"{len(self.decoders)} of {len(DECODERS.parts)}"]
        refused = sorted(set(DECODERS.parts) - set(self.decoders))
        if refused:
            texts.append(f"not {_code(*refused)}")
        for schedule in self.schedules:
            without = [name for name in self.decoders if schedule not in self.schedules_of(name)]
            if without:
                texts.append(f"with {_code(schedule)} not {_code(*without)}")
        return "; ".join(texts)


def support_table() -> list[Support]:
    """One entry for each registered family, by name."""
    return [_support_of(entry) for entry in registered_families()]


def support_markdown() -> str:
    """[`support_table`] as two Markdown tables: facts of the families, and what works with them."""
    rows = [support.row() for support in support_table()]
    return "\n\n".join(
        _markdown(columns, [[row[name] for name in columns] for row in rows]) for columns in (FACTS, PARTS)
    )


def family_markdown(name: str) -> str:
    """One family in two Markdown tables: facts with what works, and what its presets set.

    Raises:
        ValueError: if no family has this `name`; lists those that exist.
    """
    support = family_support(name)
    row = support.row()
    facts = [[column, row[column]] for column in dict.fromkeys([*FACTS, *PARTS]) if column != "family"]
    presets = []
    for preset in support.presets:
        options = preset_of(support.family, preset)
        further = [f"{option}={value}" for option, value in options.items() if option not in PRESET]
        cells = [_code(options[option]) if option in options else "" for option in PRESET[:-1]]
        presets.append([_code(preset), *cells, _code(*further)])
    return f"{_markdown(('family', row['family']), facts)}\n\n{_markdown(('preset', *PRESET), presets)}"


def refreshed(text: str) -> str:
    """A page of documentation with its generated parts as they have to be now.

    Args:
        text: Markdown; a part stands between `<!-- generated: dllm-generate families [NAME] --markdown -->` and
            `<!-- end -->`.

    Raises:
        ValueError: if a part is about a family that does not exist.
    """

    def made(part: re.Match[str]) -> str:
        begin, name, end = part.groups()
        return f"{begin}\n{family_markdown(name) if name else support_markdown()}\n\n{end}"

    return GENERATED.sub(made, text)


def family_support(name: str) -> Support:
    """The entry of one family.

    Raises:
        ValueError: if no family has this `name`; lists those that exist.
    """
    entries = {entry.family.name: entry for entry in registered_families()}
    require(name in entries, "family", name, f"one of {list(entries)}")
    return _support_of(entries[name])


def _markdown(columns: Sequence[str], rows: list[list[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _support_of(entry: Entry) -> Support:
    family, native = entry.family, entry.model_class.__name__ if entry.model_class else ""
    return Support(
        family=family,
        model_type=entry.config_class.model_type,
        published=tuple(sorted(entry.architectures - {native})) or (native,),
        native=native,
        combinations=_combinations(family),
        presets=tuple({**default_presets(family.attention), **family.presets}),
    )


def _combinations(family: Family) -> frozenset[Combination]:
    # Which id is the mask does not matter, but there has to be one.
    family = replace(family, mask_token_id=family.mask_token_id or 0)
    config = DiffusionGenerationConfig(block_length=family.block_length)
    names = product(SCHEDULES.parts, POLICIES.parts, DECODERS.parts)
    return frozenset(combination for combination in names if _work(combination, family, config))


def _work(combination: Combination, family: Family, config: DiffusionGenerationConfig) -> bool:
    config.schedule, config.cache_policy, config.decoder = combination
    try:
        for kind in KINDS:
            config.build(kind).validate(family, config)
    except ValueError:
        return False
    return True


def _code(*names: Any) -> str:
    return ", ".join(f"`{name}`" for name in names)
