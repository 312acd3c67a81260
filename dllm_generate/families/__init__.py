"""Model families, one file each, found through the registry in `base`.

A family registers itself when its module is imported. Nothing is imported here but `base` and `presets`: the generation
mixin needs those, and the families need the mixin.
"""

from dllm_generate.families.base import (
    Family,
    family_of,
    known_family,
    preset_names,
    register_family,
    register_translation,
    translated,
)
from dllm_generate.families.presets import default_presets

__all__ = [
    "Family",
    "default_presets",
    "family_of",
    "known_family",
    "preset_names",
    "register_family",
    "register_translation",
    "translated",
]
