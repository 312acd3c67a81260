"""DiffusionGenerationConfig: values, files, precedence, errors."""

import copy
import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models import EOS, MASK, PAD, counted_forwards, tiny_llada
from probes import answer
from transformers import AutoModelForCausalLM, GenerationConfig

from dllm_generate import DECODERS, DiffusionGenerationConfig, LLaDAForMaskedDiffusion
from dllm_generate.config import OWN_FIELDS
from dllm_generate.decoders.factor import FactorDecoder
from dllm_generate.decoders.fixed import FixedDecoder
from dllm_generate.decoders.threshold import ThresholdDecoder

IDS = torch.tensor([[3, 1, 4, 1, 5]])
OPTIONS = {
    "decoder": "threshold",
    "schedule": "blockwise",
    "cache_policy": "dual",
    "decoder_config": {"near_tie": 0.1},
    "schedule_config": {"early_stop": False},
    "policy_config": {"refresh_interval": 3},
    "block_length": 7,
    "threshold": 0.4,
    "preset": "speed",
    "mask_token_id": MASK,
    "logits_shift": True,
    "attention": "bidirectional",
    "temperature": 0.7,
    "do_sample": True,
    "max_new_tokens": 9,
    "eos_token_id": [EOS, 5],
}


def test_saved_and_loaded(tmp_path):
    DiffusionGenerationConfig(**OPTIONS).save_pretrained(tmp_path)
    written = json.loads((tmp_path / "generation_config.json").read_text())
    assert {key: written[key] for key in OPTIONS} == OPTIONS
    assert not {"steps", "infill", "smoothing"} & set(written), "unset options are not written"
    again = DiffusionGenerationConfig.from_pretrained(tmp_path)
    assert type(again) is DiffusionGenerationConfig
    assert {key: getattr(again, key) for key in OPTIONS} == OPTIONS
    base = GenerationConfig.from_pretrained(tmp_path)
    upgraded = DiffusionGenerationConfig.upgrade(base)
    assert {key: getattr(upgraded, key) for key in OPTIONS} == OPTIONS


@pytest.mark.parametrize(
    "decoder",
    [
        FixedDecoder(steps_per_block=3, ranking="margin"),
        ThresholdDecoder(0.7, strict=True),
        FactorDecoder(1.5, take_last=False, postpone_tokens=(3, 4)),
    ],
)
def test_an_instance_goes_through_a_file(tmp_path, decoder):
    config = DiffusionGenerationConfig(decoder=decoder)
    assert config.build(DECODERS) is decoder
    config.save_pretrained(tmp_path)
    again = DiffusionGenerationConfig.from_pretrained(tmp_path)
    assert again.decoder == decoder.name and again.build(DECODERS) == decoder
    assert json.loads(config.to_json_string())["decoder_config"]


@given(
    st.sampled_from([None, 4]),
    st.sampled_from([None, 0.2, 0.9]),
    st.sampled_from([None, "fixed", "threshold", "factor"]),
)
@settings(max_examples=20)
def test_dicts_round_trip(length, threshold, decoder):
    config = DiffusionGenerationConfig(block_length=length, threshold=threshold, decoder=decoder)
    again = DiffusionGenerationConfig.from_dict(config.to_dict())
    assert again.to_dict() == config.to_dict()
    assert copy.deepcopy(config).to_diff_dict() == config.to_diff_dict()


def test_models_keep_class_and_values(tmp_path):
    model = tiny_llada()
    model.generation_config = DiffusionGenerationConfig(
        decoder="factor",
        decoder_config={"factor": 1.5},
        cache_policy="dual",
        block_length=4,
        eos_token_id=EOS,
        pad_token_id=PAD,
    )
    expected = model.generate(IDS, max_new_tokens=12, return_dict_in_generate=True)
    model.save_pretrained(tmp_path)
    for cls in (LLaDAForMaskedDiffusion, AutoModelForCausalLM):
        again = cls.from_pretrained(tmp_path)
        config = again.generation_config
        assert type(config) is DiffusionGenerationConfig
        assert (config.decoder, config.decoder_config, config.block_length) == ("factor", {"factor": 1.5}, 4)
        output = again.generate(IDS, max_new_tokens=12, return_dict_in_generate=True)
        assert torch.equal(output.sequences, expected.sequences)
        assert torch.equal(output.commit_step, expected.commit_step)
    passed = LLaDAForMaskedDiffusion.from_pretrained(
        tmp_path, generation_config=DiffusionGenerationConfig(block_length=2)
    )
    assert passed.generation_config.block_length == 2


def test_options_set_on_a_fresh_model_are_saved_with_it(tmp_path):
    """Also where its generation config was made from the model config."""
    model = tiny_llada()
    model.generation_config.update(**{**OPTIONS, "logits_shift": False})
    model.save_pretrained(tmp_path)
    config = AutoModelForCausalLM.from_pretrained(tmp_path).generation_config
    assert {key: getattr(config, key) for key in OPTIONS} == {**OPTIONS, "logits_shift": False}
    passed = DiffusionGenerationConfig.from_pretrained(tmp_path)
    assert model.config.use_cache is False and passed.use_cache is None
    assert model.generate(IDS, generation_config=passed).shape[0] == 1


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("factor", "decoder_config={'factor': ...}"),
        ("ranking", "decoder_config={'ranking': ...}"),
        ("near_tie", "decoder_config={'near_tie': ...}"),
        ("refresh_interval", "policy_config={'refresh_interval': ...}"),
        ("early_stop", "schedule_config={'early_stop': ...}"),
    ],
)
def test_a_flat_hyper_parameter_is_told_its_place(llada, name, place):
    for call in (lambda: DiffusionGenerationConfig(**{name: 1}), lambda: llada.generate(IDS, **{name: 1})):
        with pytest.raises(ValueError) as error:
            call()
        assert f"`{name}` is a hyper-parameter: pass {place}" in str(error.value)


def test_unknown_names(llada):
    with pytest.raises(ValueError, match=r"Unknown generation options: \['blok_length'\]"):
        DiffusionGenerationConfig(blok_length=3)
    with counted_forwards(llada) as shapes, pytest.raises(ValueError, match="blok_length"):
        llada.generate(IDS, blok_length=3, max_new_tokens=2)
    assert not shapes
    with pytest.warns(UserWarning, match=r"Unknown entries of a generation config are dropped: \['blok_length'\]"):
        assert not hasattr(DiffusionGenerationConfig.from_dict({"blok_length": 3}), "blok_length")


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("threshold", 2, "a number in"),
        ("threshold", 0, "a number in"),
        ("threshold", True, "a number in"),
        ("block_length", 0, "an int > 0"),
        ("block_length", 2.5, "an int > 0"),
        ("steps", -1, "an int > 0"),
        ("steps_per_block", 0, "an int > 0"),
        ("decoder", "magic", "'fixed', "),
        ("schedule", "magic", "'blockwise', "),
        ("cache_policy", 3, "'dual', 'none', 'prefix', "),
        ("decoder_config", [1], "a dict"),
        ("temperature", -0.1, "a number >= 0"),
        ("top_p", 1.5, "a number in"),
        ("top_k", -1, "an int >= 0"),
        ("infill", "yes", "a bool"),
        ("smoothing", "on", "a bool or a dict"),
        ("preset", "turbo", "one of ['published', 'quality', 'balanced', 'speed', "),
        ("attention", "causal", "one of ['bidirectional', 'block_causal']"),
        ("mask_token_id", -1, "an int >= 0"),
        ("logits_shift", 2, "a bool"),
        ("min_new_tokens", -1, "an int >= 0"),
    ],
)
def test_values_that_are_not_allowed(llada, option, value, allowed):
    """Option, value and what is allowed are in the message, in the constructor and in the call."""
    for call in (lambda: DiffusionGenerationConfig(**{option: value}), lambda: llada.generate(IDS, **{option: value})):
        with counted_forwards(llada) as shapes, pytest.raises(ValueError) as error:
            call()
        assert f"`{option}` is {value!r}" in str(error.value) and allowed in str(error.value)
        assert not shapes


def test_options_that_exclude_each_other(llada):
    for options, words in (
        ({"steps": 4, "steps_per_block": 2}, "set only one"),
        ({"decoder": "threshold", "threshold": 0.3, "decoder_config": {"threshold": 0.2}}, "both flat and in"),
        ({"decoder": "fixed", "decoder_config": {"factor": 1.0}}, "only takes"),
        ({"decoder": ThresholdDecoder(0.3), "threshold": 0.5}, "leave `threshold` None"),
        ({"decoder": ThresholdDecoder(0.3), "decoder_config": {"strict": True}}, "must be None where"),
        ({"steps": 2, "block_length": 4, "max_new_tokens": 12}, "at least the number of blocks, 3"),
    ):
        with counted_forwards(llada) as shapes, pytest.raises(ValueError, match=words):
            llada.generate(IDS, **{"max_new_tokens": 4, **options})
        assert not shapes


@pytest.mark.parametrize(
    ("options", "ignored"),
    [
        ({"decoder": "fixed", "threshold": 0.9}, "threshold"),
        ({"decoder": "threshold", "steps": 8}, "steps"),
        ({"decoder": "factor", "steps_per_block": 8}, "steps_per_block"),
    ],
)
def test_an_option_without_effect_warns_once(llada, options, ignored):
    with pytest.warns(UserWarning, match=f"`{ignored}` has no effect with") as caught:
        llada.generate(IDS, max_new_tokens=2, **options)
    assert sum("has no effect" in str(w.message) for w in caught) == 1


def test_every_own_field_is_documented():
    assert all(name in DiffusionGenerationConfig.__doc__ for name in OWN_FIELDS)
    assert answer(tiny_llada().generate(IDS, max_new_tokens=1, return_dict_in_generate=True))
