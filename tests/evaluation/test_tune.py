"""The search for the fastest configuration, and what it says."""

import dataclasses
import json
import sys

import pytest
import torch
from models import byte_tokenizer, tiny_llada
from tqdm import tqdm

from dllm_generate import DiffusionGenerationConfig
from dllm_generate.decoders import DECODERS
from dllm_generate.evaluation.candidates import DECODER_GRID, check_candidates, default_candidates, reference_config
from dllm_generate.evaluation.plot import check_plot, plot
from dllm_generate.evaluation.prompts import Prompt
from dllm_generate.evaluation.statistics import Interval
from dllm_generate.evaluation.trials import Trial, Tuning
from dllm_generate.evaluation.tune import _Search, tune
from dllm_generate.families import Family, family_of
from dllm_generate.families.presets import default_presets
from dllm_generate.text import Reply

TEXTS = [Prompt(text) for text in ("hello", "a longer prompt", "x", "four words are here")]
SHORT = {"max_new_tokens": 8, "batch_size": 4}


@pytest.fixture(scope="module")
def pair():
    tokenizer = byte_tokenizer()
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("mask", "eos", "pad")}
    return tiny_llada(vocabulary=len(tokenizer), **ids), tokenizer


@pytest.fixture(scope="module")
def found(pair):
    candidates = [
        {"decoder": "fixed", "cache_policy": "prefix", "policy_config": {"refresh_interval": 1}},
        {"decoder": "threshold", "threshold": 1e-6, "block_length": 8},
        {"decoder": "fixed", "steps_per_block": 8, "block_length": 8},
    ]
    return tune(*pair, TEXTS, candidates, **SHORT)


def test_agreement_is_the_share_of_texts_that_equal_those_of_one_token_per_step(found):
    assert found.judged_by == "agreement"
    assert found.reference.config == {"decoder": "fixed", "cache_policy": "none", "block_length": 32}
    assert [r.forwards for r in found.reference.replies] == [8] * 4
    same = [trial for trial in found.trials if trial.config["decoder"] == "fixed"]
    assert len(same) == 2 and all(trial.right == [True] * 4 for trial in same)
    (at_once,) = (trial for trial in found.trials if trial.config["decoder"] == "threshold")
    assert at_once.score.forwards.value == 1.0 and not all(at_once.right)
    assert found.winner.config["decoder"] == "fixed"


def test_a_sample_that_is_too_small_is_said_to_be(found):
    winner = Trial({}, found.reference.replies, [True] * 4, 0.5, Interval(0.0, -0.3, 0.3))
    notes = dataclasses.replace(found, winner=winner).notes
    assert notes == [
        "4 prompts are too few to tell: the 95% interval of the winner's loss reaches 30.0 points, beyond 0.5."
    ]
    assert dataclasses.replace(found, winner=winner, loss=30.0).notes == []
    plain = json.loads(json.dumps(found.to_dict()))
    assert plain["winner"]["n"] == 4 and plain["aup"]["overall"] > 0
    assert {"trials", "front", "rejected", "reference", "notes"} <= set(plain)


def test_a_loss_of_everything_lets_the_fastest_win(pair):
    candidates = [{"decoder": "threshold", "threshold": 1e-6, "block_length": 8}, {"decoder": "fixed"}]
    found = tune(*pair, TEXTS, candidates, loss=100, **SHORT)
    assert found.winner.config is candidates[0]
    certain = tune(*pair, TEXTS, candidates, loss=1, certain=True, **SHORT)
    assert certain.winner is certain.reference and "No candidate" in certain.notes[0]


def test_reference_answers_make_it_accuracy(pair):
    prompts = [Prompt(prompt.text, lambda text: False) for prompt in TEXTS]
    found = tune(*pair, prompts, [{"decoder": "threshold"}], **SHORT)
    assert found.judged_by == "accuracy" and found.reference.score.accuracy.value == 0.0
    assert any("no prompt right" in note for note in found.notes)


def test_the_written_config_takes_effect(pair, found, tmp_path):
    model, tokenizer = pair
    winner = Trial({"decoder": "threshold", "threshold": 1e-6, "cache_policy": "dual", "block_length": 4})
    tuning = Tuning(found.reference, [winner], [], winner, "agreement", 0.5, "tpf", False)
    tuning.generation_config(model).save_pretrained(tmp_path)
    assert model.generation_config.decoder is None
    loaded = DiffusionGenerationConfig.from_pretrained(tmp_path)
    assert {name: getattr(loaded, name) for name in winner.config} == winner.config
    ids = torch.tensor([tokenizer("hello").input_ids])
    options = {"max_new_tokens": 8, "return_dict_in_generate": True}
    by_file, by_hand, plain = (
        model.generate(ids, **options, **more) for more in ({"generation_config": loaded}, winner.config, {})
    )
    assert by_file.num_forwards.tolist() == by_hand.num_forwards.tolist() == [2] and plain.num_forwards.tolist() == [8]
    assert torch.equal(by_file.sequences, by_hand.sequences)


def scripted(n, screen, keep, configs, *, allowed=0.02, certain=False):
    """Runs a search in which a configuration says how fast it is and how often it is wrong."""
    calls = []

    def answer(texts, config):
        calls.append((config["speed"], len(texts)))
        wrong = lambda text: config.get("every") and int(text) % config["every"] == 0
        return [Reply("?" if wrong(t) else t, config["speed"], 1, 1.0, "eos") for t in texts], 1.0

    prompts = [Prompt(str(i), str(i).__eq__) for i in range(n)]
    search = _Search(answer, prompts, "tpf", allowed, certain, tqdm(disable=True))
    trials, rejected = search.run({"speed": 1}, configs, screen, keep)
    return trials, rejected, calls, search


def test_the_search_screens_doubles_and_stops():
    configs = [{"speed": 9, "every": 2}, {"speed": 8, "every": 12}, {"speed": 7}, {"speed": 6}, {"speed": 5}]
    (first, *trials), rejected, calls, search = scripted(400, 25, 1, configs)
    assert first.config == {"speed": 1} and calls[0] == (1, 400)
    # Every candidate is screened; the first is out at once, the second on the way, the third holds; none goes on.
    assert calls[1:6] == [(speed, 25) for speed in (9, 8, 7, 6, 5)]
    rest = calls[6:]
    assert rest[0] == (8, 25) and sum(size for speed, size in rest if speed == 8) < 375
    assert [call for call in rest if call[0] != 8] == [(7, 25), (7, 50), (7, 100), (7, 200)]
    assert [trial.config["speed"] for trial in trials] == [7] and len(rejected) == 4
    assert search.holds(trials[0])


def test_the_search_goes_on_until_one_holds():
    configs = [{"speed": 9, "every": 30}, {"speed": 8, "every": 31}, {"speed": 7, "every": 50}]
    (_, *trials), _, _, search = scripted(60, 60, 1, configs, allowed=0.021)
    # 2 of 60 are wrong in each; the interval is wide, so nothing is rejected, and nothing holds.
    assert [trial.config["speed"] for trial in trials] == [9, 8, 7] and not any(search.holds(t) for t in trials)
    (_, *trials), _, _, search = scripted(60, 60, 1, [*configs, {"speed": 6}], allowed=0.021)
    assert search.holds(trials[-1]) and not scripted(60, 60, 1, [{"speed": 6}], certain=True)[3].holds(trials[-1])


def test_among_equals_the_other_figure_decides():
    slow, fast = (
        Trial({}, [Reply("a", 10, 2, 1.0, "eos")], [True], 2.0),
        Trial({}, [Reply("a", 10, 2, 1.0, "eos")], [True], 1.0),
    )
    assert fast.rank("tpf") > slow.rank("tpf") and fast.rank("speed") > slow.rank("speed")
    assert fast.tokens_per_second == 10.0 and fast.point == (5.0, 1.0)


def test_the_grid_holds_every_decoder_policy_and_block_length(pair):
    family = family_of(pair[0])
    grid = default_candidates(family, 100)
    values = lambda name: {config[name] for config in grid}
    assert values("decoder") == set(DECODER_GRID) & set(DECODERS.parts)
    assert values("cache_policy") == {"none", "prefix", "dual", "vicinity"}
    assert values("block_length") == {32, 64, 128}
    assert {config["block_length"] for config in default_candidates(family, 32)} == {32}
    causal = Family("causal", attention="block_causal", block_length=4, presets=default_presets("block_causal", 4))
    assert reference_config(causal)["block_length"] == 4
    assert {config["block_length"] for config in default_candidates(causal, 100)} <= {4}


def test_the_reference_is_one_token_per_step_whatever_the_model_says(pair):
    own = DiffusionGenerationConfig(decoder="threshold", steps=2, smoothing=True)
    config = reference_config(family_of(pair[0]), own)
    ids = torch.tensor([pair[1]("hello").input_ids])
    output = pair[0].generate(ids, generation_config=own, max_new_tokens=8, return_dict_in_generate=True, **config)
    assert output.num_forwards.tolist() == [8]
    assert reference_config(Family("bare")) == {"decoder": "fixed", "cache_policy": "none", "block_length": 32}


def test_the_grid_runs_on_a_model(pair):
    grid = [config for config in default_candidates(family_of(pair[0]), 8) if config["cache_policy"] == "dual"]
    found = tune(*pair, TEXTS[:2], grid[::5], max_new_tokens=4, batch_size=2)
    assert len(found.trials) + len(found.rejected) == len(grid[::5])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"loss": -1}, "`loss` is -1"),
        ({"loss": float("nan")}, "`loss` is nan"),
        ({"metric": "nfe"}, "`metric` is 'nfe'"),
        ({"batch_size": 0}, "`batch_size` is 0"),
        ({"screen": 1.5}, "`screen` is 1.5"),
        ({"keep": True}, "`keep` is True"),
        ({"prompts": []}, "`prompts` must hold"),
        ({"prompts": [Prompt("a"), Prompt("b", bool)]}, "`is_right`, or none"),
        ({"max_new_tokens": 5000}, "max_position_embeddings"),
        ({"candidates": [{"decoder": "sums"}]}, "`decoder` is 'sums'"),
        ({"candidates": [{}, {"threshold": 3}]}, "`threshold` is 3"),
        ({"candidates": [{"factor": 2}]}, "decoder_config"),
        ({"candidates": [{"decoder": "fixed", "smoothing": True}]}, "`smoothing` is on"),
    ],
)
def test_what_cannot_work_is_an_error_before_any_forward(pair, arguments, message):
    forwards = []
    hook = pair[0].get_decoder().register_forward_hook(lambda *call: forwards.append(1))
    try:
        with pytest.raises(ValueError, match=message):
            tune(*pair, **{"prompts": TEXTS, "candidates": [{}], **SHORT, **arguments})
    finally:
        hook.remove()
    assert not forwards and not pair[0].get_decoder()._forward_pre_hooks


def test_a_check_runs_no_forward_and_leaves_the_model_as_it_was(pair):
    good, bad = check_candidates(*pair, ["a"], [{"decoder": "factor"}, {"steps": 0}], max_new_tokens=4)
    assert good is None and "`steps` is 0" in str(bad)
    assert not pair[0].get_decoder()._forward_pre_hooks


def test_a_plot_is_written(found, tmp_path):
    pytest.importorskip("matplotlib")
    plot(found, tmp_path / "new" / "curve.svg")
    text = (tmp_path / "new" / "curve.svg").read_text()
    assert text.startswith("<?xml") and "</svg>" in text
    with pytest.raises(ValueError, match=r"`plot` is 'curve.doc'.*\.svg"):
        plot(found, "curve.doc")


def test_without_matplotlib_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install dllm_generate\[viz\]"):
        check_plot(tmp_path / "curve.svg")


def test_a_trial_that_has_seen_nothing_excludes_nothing():
    assert Trial({}).difference == Interval(0.0, -1.0, 1.0)
