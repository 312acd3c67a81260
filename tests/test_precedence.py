"""Whose word counts: call argument, passed config, the model's config, preset."""

import torch
from models import MASK, counted_forwards, tiny_llada
from transformers import GenerationConfig

from dllm_generate import DiffusionGenerationConfig
from dllm_generate.decoders.fixed import FixedDecoder
from dllm_generate.schedules.blockwise import BlockwiseSchedule

IDS = torch.tensor([[3, 1, 4, 1, 5]])


def forwards(model, ids=IDS, **options):
    """Forwards of a call that uses `steps_per_block` or `threshold`: shows which value counted."""
    options = {"max_new_tokens": 16, "eos_token_id": MASK, "return_dict_in_generate": True, **options}
    return int(model.generate(ids, **options).num_forwards[0])


def test_precedence():
    """Call argument > passed config > the model's config > preset."""
    model = tiny_llada()
    assert forwards(model) == 16, "the published preset: one token per step"
    model.generation_config.update(steps_per_block=2, block_length=8)
    assert forwards(model) == 4
    passed = DiffusionGenerationConfig(steps_per_block=4)
    assert forwards(model, generation_config=passed) == 8, "block_length still comes from the model"
    assert forwards(model, generation_config=passed, steps_per_block=1) == 2
    assert forwards(model, generation_config=passed, block_length=4) == 16
    assert passed.block_length is None and model.generation_config.steps_per_block == 2, "nothing is written back"
    assert forwards(model, generation_config=GenerationConfig(num_return_sequences=1)) == 4, "transformers' own class"


def test_presets_fill_what_is_unset():
    model = tiny_llada()
    quick = forwards(model, preset="speed", threshold=0.3)
    assert quick < 16
    with counted_forwards(model) as shapes:
        forwards(model, preset="speed", block_length=4)
    assert {width for _, width in shapes} == {21, 4}, "the dual cache of the preset"
    model.generation_config.preset = "speed"
    with counted_forwards(model) as shapes:
        forwards(model, cache_policy="none")
    assert {width for _, width in shapes} == {21}
    assert forwards(model, decoder="fixed") == 16, "the preset's threshold is for its own decoder"


def test_hyper_parameters_of_another_part_do_not_leak():
    model = tiny_llada()
    model.generation_config.update(decoder="factor", decoder_config={"factor": 1.5})
    assert forwards(model, decoder="fixed") == 16
    assert forwards(model, decoder="fixed", decoder_config={"ranking": "margin"}) == 16
    assert forwards(model) < 16
    passed = DiffusionGenerationConfig(decoder="factor", decoder_config={"factor": 1.5})
    assert forwards(model, generation_config=passed, decoder="fixed") == 16


def test_a_hyper_parameter_given_in_another_way_takes_precedence():
    """Flat, in a dict or in an instance: what ranks higher wins over the model's config, and nothing collides."""
    model = tiny_llada()
    model.generation_config.update(decoder="fixed", steps=8, block_length=8)
    assert forwards(model, steps_per_block=2) == 4
    assert forwards(model, generation_config=DiffusionGenerationConfig(steps_per_block=2)) == 4
    assert forwards(model, generation_config=DiffusionGenerationConfig(steps_per_block=2), steps=4) == 4
    assert forwards(model, decoder=FixedDecoder(steps_per_block=1)) == 2
    assert forwards(model, decoder_config={"steps": 16}) == 16
    assert forwards(model, schedule=BlockwiseSchedule(4)) == 8
    assert forwards(model, schedule_config={"block_length": 2}) == 8
    model.generation_config = DiffusionGenerationConfig(
        decoder="fixed", decoder_config={"steps": 8, "ranking": "margin"}
    )
    assert forwards(model, steps=2) == 2
    assert forwards(model) == 8
