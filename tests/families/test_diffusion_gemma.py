"""transformers' DiffusionGemma in our loop: our guarantees. Its own tokens are in tests/parity."""

import contextlib
import importlib
import sys

import pytest
import torch
from gemma_kit import CANVAS, SAMPLER, tiny_gemma
from models import EOS, MASK, PAD, byte_tokenizer, padded
from probes import BlockIdling, answer
from promises import compare, same
from transformers import CompileConfig, TextStreamer
from transformers.models.diffusion_gemma import generation_diffusion_gemma as published

from dllm_generate import DiffusionGenerationConfig, RowStreamer, attach, diffusion_generate, generation
from dllm_generate.families import family_of

RENOISE = {"decoder": "renoise", "steps_per_block": 6, "decoder_config": {**SAMPLER, "entropy_bound": 0.7}}
PROMPTS = [[5], [3, 1, 4, 1, 5, 9, 2, 6, 5, 3], [9, 2, 6, 8]]
# The model writes these often.
ENDS = [10, 30, EOS]
IDS = torch.tensor([PROMPTS[1]])
OTHERS = [
    {"decoder": "threshold", "threshold": 0.3},
    {"decoder": "fixed", "steps_per_block": 3},
    {"decoder": "entropy_bound", "decoder_config": {"gamma": 2.0}},
    {"decoder": "editing", "threshold": 0.4, "decoder_config": {"editing_threshold": 0.3, "max_post_steps": 2}},
    {"decoder": "remasking", "threshold": 0.6, "decoder_config": {"low_threshold": 0.2, "remask_threshold": 0.5}},
]


@pytest.fixture(scope="module")
def gemma():
    return attach(tiny_gemma())


def call(model, inputs, seed=3, **options):
    torch.manual_seed(seed)
    inputs = {"input_ids": inputs} if isinstance(inputs, torch.Tensor) else inputs
    defaults = {"max_new_tokens": 19, "eos_token_id": None, "pad_token_id": PAD, "return_dict_in_generate": True}
    return model.generate(**inputs, **{**defaults, **({} if "decoder" in options else RENOISE), **options})


@contextlib.contextmanager
def counted(model):
    """Counts the forwards of the encoder and of the decoder."""
    counts = {"encoder": 0, "decoder": 0}

    def count(name):
        return lambda *args: counts.__setitem__(name, counts[name] + 1)

    hooks = [getattr(model.model, name).register_forward_pre_hook(count(name)) for name in counts]
    try:
        yield counts
    finally:
        for hook in hooks:
            hook.remove()


@pytest.mark.parametrize("options", [RENOISE, *OTHERS], ids=lambda o: o["decoder"])
@pytest.mark.parametrize("ends", [None, ENDS])
def test_a_row_is_its_single_run(gemma, monkeypatch, options, ends):
    """With the noise of that row. Also for decoders that know nothing of noise."""
    monkeypatch.setattr(generation, "_seed", lambda: 40)
    output = call(gemma, padded(PROMPTS), **options, eos_token_id=ends)
    lengths = set()
    for row, prompt in enumerate(PROMPTS):
        # The noise of row r is that of row 0 under a seed that is larger by r.
        monkeypatch.setattr(generation, "_seed", lambda row=row: 40 + row)
        with counted(gemma) as counts:
            alone = call(gemma, torch.tensor([prompt]), **options, eos_token_id=ends)
        assert sum(counts.values()) == alone.num_forwards[0]
        assert counts["encoder"] == -(-len(answer(alone)) // CANVAS)
        compare(output, row, alone)
        tokens = answer(alone)
        lengths.add(len(tokens))
        assert len(tokens) == 19 or tokens[-1] in ends
        assert output.sequences[row, 10 - len(prompt) : 10].tolist() == prompt
        assert (output.sequences[row, 10 + len(tokens) :] == PAD).all()
    assert (lengths == {19}) == (ends is None)


@pytest.mark.parametrize("options", [RENOISE, OTHERS[0], OTHERS[3]], ids=lambda o: o["decoder"])
def test_what_changes_no_token(gemma, options):
    inputs = padded(PROMPTS)
    plain = call(gemma, inputs, **options, eos_token_id=ENDS)
    for salt in (1, 2):
        same(plain, call(gemma, inputs, **options, eos_token_id=ENDS, schedule=BlockIdling(CANVAS, salt=salt)))
    same(plain, call(gemma, inputs, **options, eos_token_id=ENDS, unroll_steps=3))
    same(plain, call(gemma, inputs, **options, eos_token_id=ENDS, cache_implementation="static"))
    for implementation in ("eager", "sdpa"):
        gemma.set_attn_implementation(implementation)
        same(plain, call(gemma, inputs, **options, eos_token_id=ENDS))


def test_the_cache_is_exact(gemma):
    inputs = padded(PROMPTS)
    kept, recomputed = (call(gemma, inputs, cache_policy=policy) for policy in ("block", "none"))
    assert torch.equal(kept.sequences, recomputed.sequences) and torch.equal(kept.commit_step, recomputed.commit_step)
    # Without a cache, the encoder runs before every forward of the decoder.
    assert torch.equal(recomputed.num_forwards, 2 * (kept.num_forwards - 3))


@pytest.mark.parametrize("new_tokens", [1, CANVAS, CANVAS + 1])
def test_exact_length(gemma, new_tokens):
    output = call(gemma, IDS, max_new_tokens=new_tokens)
    assert output.sequences.shape == (1, 10 + new_tokens) and output.finish_reason == ["length"]
    assert torch.equal(output.sequences[:, :10], IDS)


def test_seeds_and_several_sequences(gemma):
    one, again, other = (call(gemma, IDS, seed=seed).sequences for seed in (1, 1, 2))
    assert torch.equal(one, again) and not torch.equal(one, other)
    output = call(gemma, IDS, seed=1, num_return_sequences=3, do_sample=True)
    assert torch.equal(output.sequences[:1], one)
    assert len({tuple(row) for row in output.sequences.tolist()}) == 3
    # The most likely token only: what is accepted is another text.
    assert not torch.equal(call(gemma, IDS, seed=1, do_sample=True, top_k=1).sequences, one)


def test_streams(gemma):
    tokenizer, texts, drafts, shown = byte_tokenizer(), {}, [], []
    rows = RowStreamer(tokenizer, lambda row, text, end: texts.setdefault(row, []).append(text))
    output = call(gemma, padded(PROMPTS), streamer=rows)
    assert ["".join(texts[row]) for row in range(3)] == [tokenizer.decode(answer(output, row)) for row in range(3)]

    class Drafts(TextStreamer):
        def put_draft(self, value):
            drafts.append(value)

        def on_finalized_text(self, text, stream_end=False):
            shown.append(text)

    output = call(gemma, IDS, streamer=Drafts(tokenizer, skip_prompt=True))
    assert "".join(shown) == tokenizer.decode(answer(output))
    assert all(0 <= int(draft.min()) and len(draft) <= CANVAS for draft in drafts) and len(drafts) > 10


def test_bfloat16():
    model = attach(tiny_gemma().to(torch.bfloat16))
    assert call(model, padded(PROMPTS)).sequences.shape == (3, 29)


def test_a_saved_sampler_takes_effect(tmp_path):
    model = tiny_gemma()
    sampler = published.EntropyBoundSamplerConfig(0.7)
    values = {"max_denoising_steps": 6, "sampler_config": sampler, **SAMPLER, "max_new_tokens": 19}
    model.generation_config = published.DiffusionGemmaGenerationConfig(**values, pad_token_id=PAD)
    model.save_pretrained(tmp_path)
    loaded = attach(type(model).from_pretrained(tmp_path))
    torch.manual_seed(3)
    ids = loaded.generate(IDS, eos_token_id=MASK)
    assert isinstance(ids, torch.Tensor)
    assert torch.equal(ids, call(loaded, IDS, eos_token_id=MASK).sequences)
    # A config of the published class, given to the call.
    quick = published.DiffusionGemmaGenerationConfig(max_denoising_steps=2)
    output = loaded.generate(IDS, eos_token_id=MASK, generation_config=quick, return_dict_in_generate=True)
    assert output.num_forwards.tolist() == [3 * (1 + 2)]
    # The preset, where nobody says anything.
    assert call(attach(tiny_gemma()), IDS, decoder=None).num_forwards.tolist() == [3 * (1 + 48)]
    assert call(loaded, IDS, decoder="threshold", threshold=0.3).num_forwards < 40


def test_without_a_trace(tmp_path):
    model = tiny_gemma()
    before = model.generation_config.to_dict()
    ids = diffusion_generate(model, IDS, generation_config=DiffusionGenerationConfig(**RENOISE), max_new_tokens=5)
    assert ids.shape == (1, 15) and model.generation_config.to_dict() == before
    assert model.generate(IDS, max_new_tokens=8, max_denoising_steps=2).sequences.shape == (1, 18)


REFUSED = {
    "smoothing": ({"smoothing": True}, "`smoothing` is True"),
    "lookahead": ({"lookahead": True}, "`lookahead` is True"),
    "infill": ({"infill": True, "max_new_tokens": None}, "`infill` is True"),
    "compile": (
        {"compile_config": CompileConfig(), "cache_implementation": "static"},
        "`compile_config` is .*, but must be None",
    ),
    "guidance": ({"guidance_scale": 2.0}, "`guidance_scale` is 2.0"),
    "mask": ({"mask_token_id": 5}, "`mask_token_id` is 5, but must be None"),
    "shift": ({"logits_shift": True}, "`logits_shift` is True"),
    "attention": ({"attention": "bidirectional"}, "`schedule` is 'blockwise', but must be 'block_diffusion'"),
    "wino": ({"decoder": "wino"}, "`decoder` is 'wino'"),
    "schedule": ({"schedule": "pipelined"}, "`schedule` is 'pipelined', .* one block at a time"),
    "blockwise": ({"schedule": "blockwise"}, "`schedule` is 'blockwise'"),
    "block_length": ({"block_length": 4}, "`block_length` is 4, but must be 8"),
    "policy": ({"cache_policy": "dual"}, "`cache_policy` is 'dual'"),
    "temperature": ({"do_sample": True, "temperature": 0.7}, "`temperature` is 0.7, but must be unset .*'t_max'"),
    "start": ({"decoder_input_ids": IDS}, "`decoder_input_ids` is given"),
    "images": ({"pixel_values": torch.zeros(1, 3)}, "`pixel_values` tells of images"),
    "types": ({"mm_token_type_ids": torch.ones_like(IDS)}, "`mm_token_type_ids` tells of images"),
    "unknown": ({"max_denoising_steps": 4}, "max_denoising_steps"),
    "length": ({"max_new_tokens": 500}, "`max_position_embeddings` is 256"),
}


@pytest.mark.parametrize(("options", "message"), REFUSED.values(), ids=REFUSED)
def test_refused_before_the_first_forward(gemma, options, message):
    with counted(gemma) as counts, pytest.raises(ValueError, match=message):
        call(gemma, IDS, **options)
    assert sum(counts.values()) == 0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"entropy_bound": 0}, "`entropy_bound` is 0, but must be a number > 0"),
        ({"t_min": 0.9}, "`t_min` is 0.9, but must be a number from 0 to t_max"),
        ({"t_max": True}, "`t_max` is True"),
        ({"stability_threshold": -1}, "`stability_threshold` is -1, but must be an int >= 0"),
        ({"confidence_threshold": 0}, "`confidence_threshold` is 0, but must be None or a number > 0"),
        ({"postpone_eos": True}, "`postpone_eos` is True, but must be unset"),
    ],
)
def test_bad_hyper_parameters(values, message):
    with pytest.raises(ValueError, match=message):
        DiffusionGenerationConfig(decoder="renoise", decoder_config=values)


def test_what_a_processor_gives_for_text(gemma):
    inputs = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS), "mm_token_type_ids": torch.zeros_like(IDS)}
    # A tokenizer may have a mask token that this model does not know.
    output = call(gemma, inputs, tokenizer=byte_tokenizer())
    assert torch.equal(output.sequences, call(gemma, IDS).sequences)


def test_family(gemma):
    family = family_of(gemma)
    assert (family.name, family.noise, family.mask_token_id, family.block_length) == (
        *("diffusion_gemma", "uniform", -1),
        CANVAS,
    )
    with pytest.raises(ValueError, match="DiffusionGemmaModel has no head"):
        attach(tiny_gemma().model)


def test_every_step_takes_the_steps_it_may(gemma):
    """Thresholds that stop at once, never, or as soon as nothing changes."""
    takes = lambda **values: int(call(gemma, IDS, max_new_tokens=8, decoder_config=values).num_forwards) - 1
    assert takes(stability_threshold=0, confidence_threshold=1e9) == 1
    assert takes(confidence_threshold=None) == 6
    assert 2 <= takes(confidence_threshold=1e9) <= 6


def test_the_family_does_not_import_the_model(monkeypatch):
    family, model = "dllm_generate.families.diffusion_gemma", published.__name__.replace("generation_", "modeling_")
    for name in (family, model):
        monkeypatch.delitem(sys.modules, name)
    importlib.import_module(family)
    assert model not in sys.modules
