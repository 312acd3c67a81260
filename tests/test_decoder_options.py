"""Options that every decoder takes: postponed tokens, and the confidence of the warped distribution."""

import pytest
import torch
from models import EOS, EOT, MASK, Scripted, table

from dllm_generate import DECODERS, DiffusionGenerationConfig
from dllm_generate.families import Family
from dllm_generate.families.presets import default_presets
from dllm_generate.sampling import Noise, Sampler

PROMPT = torch.tensor([[1]])

BY_CONFIDENCE = [name for name, part in DECODERS.parts.items() if part().ranks_by_confidence]


def order(model, **options):
    """The order in which the positions were committed."""
    output = model.generate(PROMPT, return_dict_in_generate=True, schedule_config={"early_stop": False}, **options)
    return output.commit_step[0].tolist(), output.sequences[0, 1:].tolist()


@pytest.mark.parametrize("decoder", BY_CONFIDENCE)
def test_eos_comes_last(decoder):
    model = Scripted(table((5, 0.3), (6, 0.2), (7, 0.25), (EOS, 0.9)))
    plain, tokens = order(model, max_new_tokens=4, decoder=decoder)
    late, same_tokens = order(model, max_new_tokens=4, decoder=decoder, decoder_config={"postpone_eos": True})
    assert tokens == same_tokens == [5, 6, 7, EOS]
    assert plain[3] == min(plain) and late[3] == max(late) and plain != late


def test_named_tokens_come_last():
    model = Scripted(table((5, 0.95), (6, 0.2), (7, 0.25)))
    steps, _ = order(model, max_new_tokens=3, decoder="fixed", decoder_config={"postpone_tokens": [5, 6]})
    assert steps == [1, 2, 0]


def test_postponed_tokens_leave_the_confidence_of_others():
    scores = torch.log(torch.tensor([[[0.1, 0.3, 0.6], [0.5, 0.4, 0.1]]]))
    tokens, confidence = Sampler(postponed=(0,))(scores, None)
    assert tokens.tolist() == [[2, 0]]
    assert torch.allclose(confidence, torch.tensor([[0.6 / 0.9, 0.0]]))


def test_nothing_but_postponed_tokens():
    scores = torch.tensor([[[0.0, float("-inf")]]])
    assert Sampler(postponed=(0,))(scores, None)[1].tolist() == [[0.0]]


def test_end_of_turn_of_the_family_comes_last(monkeypatch):
    family = Family(
        "chatty", mask_token_id=MASK, special_token_ids={"eot": EOT}, presets=default_presets("bidirectional")
    )
    monkeypatch.setattr("dllm_generate.mixin.family_of", lambda *args: family)
    model = Scripted(table((EOT, 0.9), (5, 0.3)))
    steps, _ = order(model, max_new_tokens=2, decoder="fixed", decoder_config={"postpone_eos": True})
    assert steps == [1, 0]


def test_filtered_confidence_is_that_of_the_warped_distribution():
    scores = torch.log(torch.tensor([[[0.1, 0.3, 0.6]]]))
    noise = Noise(0, *torch.zeros(2, 1, dtype=torch.long), torch.zeros(1, 1, dtype=torch.long))
    keep_best = lambda ids, scores: scores.masked_fill(scores < scores.amax(-1, keepdim=True), float("-inf"))  # noqa: E731
    assert torch.allclose(Sampler(keep_best)(scores, noise)[1], torch.tensor([[0.6]]))
    assert torch.allclose(Sampler(keep_best, filtered_confidence=True)(scores, noise)[1], torch.ones(1, 1))


def test_filtered_confidence_takes_effect():
    model = Scripted(table((5, 0.3), (6, 0.2)))
    options = {"max_new_tokens": 2, "do_sample": True, "top_k": 1, "return_dict_in_generate": True}
    output = model.generate(PROMPT, **options, decoder="fixed", decoder_config={"filtered_confidence": True})
    assert output.confidence.tolist() == [[1.0, 1.0]]


def test_filtered_confidence_without_sampling_warns():
    model = Scripted(table((5, 0.3)))
    with pytest.warns(UserWarning, match="filtered_confidence"):
        model.generate(PROMPT, max_new_tokens=1, decoder="fixed", decoder_config={"filtered_confidence": True})


@pytest.mark.parametrize(
    "values",
    [
        {"postpone_eos": 1},
        {"postpone_tokens": "62"},
        {"postpone_tokens": [-1]},
        {"filtered_confidence": None},
        {"postpone_eos": True, "ranking": "entropy"},
    ],
)
def test_refused(values):
    with pytest.raises(ValueError, match=next(iter(values))):
        DiffusionGenerationConfig(decoder="fixed", decoder_config=values)


def test_refused_where_the_confidence_decides_nothing():
    with pytest.raises(ValueError, match="`postpone_eos` is True, but must be unset: .* EntropyBoundDecoder does not"):
        DiffusionGenerationConfig(decoder="entropy_bound", decoder_config={"postpone_eos": True})


def test_refused_before_the_first_forward():
    model = Scripted(table((5, 0.3)))
    with pytest.raises(ValueError, match="postpone_tokens.*64"):
        model.generate(PROMPT, max_new_tokens=1, decoder="fixed", decoder_config={"postpone_tokens": [64]})
    model.generation_config.eos_token_id = None
    with pytest.raises(ValueError, match="eos_token_id"):
        model.generate(PROMPT, max_new_tokens=1, decoder="fixed", decoder_config={"postpone_eos": True})
    assert not model.calls


@pytest.mark.parametrize("name", BY_CONFIDENCE)
@pytest.mark.parametrize("as_instance", [False, True])
def test_saved_and_loaded(name, as_instance, tmp_path):
    values = {"postpone_eos": True, "postpone_tokens": [EOT, MASK]}
    chosen = {"decoder": DECODERS.build(name, values)} if as_instance else {"decoder": name, "decoder_config": values}
    config = DiffusionGenerationConfig(**chosen)
    config.save_pretrained(tmp_path)
    loaded = DiffusionGenerationConfig.from_pretrained(tmp_path)
    assert loaded.to_dict() == config.to_dict()
    assert loaded.build(DECODERS) == config.build(DECODERS)
    assert loaded.build(DECODERS).postpone_tokens == (EOT, MASK)
