"""Instances of classes that nobody registered decode, but are not saved: their name would bring back another class."""

import copy
import dataclasses

import pytest
import torch

from dllm_generate import DECODERS, DiffusionGenerationConfig
from dllm_generate.caches.dual import DualCachePolicy
from dllm_generate.decoders.threshold import ThresholdDecoder
from dllm_generate.schedules.blockwise import BlockwiseSchedule

IDS = torch.tensor([[3, 1, 4, 1, 5]])


@dataclasses.dataclass(frozen=True)
class Nameless(ThresholdDecoder):
    """A class that nobody registered; it inherits the name of another."""


@dataclasses.dataclass(frozen=True)
class NamelessSchedule(BlockwiseSchedule):
    """The same."""


@dataclasses.dataclass(frozen=True)
class NamelessPolicy(DualCachePolicy):
    """The same."""


@pytest.mark.parametrize(
    ("options", "registry"),
    [
        ({"decoder": Nameless(0.7)}, "DECODERS"),
        ({"schedule": NamelessSchedule()}, "SCHEDULES"),
        ({"cache_policy": NamelessPolicy()}, "POLICIES"),
    ],
)
def test_an_instance_that_a_file_could_not_name_is_not_saved(tmp_path, llada, options, registry):
    config, model = DiffusionGenerationConfig(max_new_tokens=4, **options), copy.copy(llada)
    option, part = next(iter(options.items()))
    message = f"`{option}` is an instance of {type(part).__name__}, .*dllm_generate.{registry}.register"
    model.generation_config = config
    for save in (config.save_pretrained, model.save_pretrained, lambda p: config.to_json_file(p / "config.json")):
        with pytest.raises(ValueError, match=message):
            save(tmp_path)
    assert not (tmp_path / "generation_config.json").exists()
    assert option in repr(config) and config.to_json_string() and config.to_dict()[option]
    assert model.generate(IDS).shape == (1, 9)


def test_a_registered_instance_is_saved(tmp_path, monkeypatch):
    monkeypatch.setattr(DECODERS, "_parts", dict(DECODERS.parts))
    named = DECODERS.register("named")(dataclasses.dataclass(frozen=True)(type("Named", (ThresholdDecoder,), {})))
    DiffusionGenerationConfig(decoder=named(0.7)).save_pretrained(tmp_path)
    assert DiffusionGenerationConfig.from_pretrained(tmp_path).build(DECODERS) == named(0.7)
