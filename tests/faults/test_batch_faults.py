"""Faults of batches, padding, masks, seeds and numbers that users of other tools have reported; by their numbers."""

import pytest
import torch
from models import EOS, MASK, PAD, Scripted, byte_tokenizer, padded, row_of_logits, table, tiny_llada
from probes import answer

from dllm_generate import LLaDAForMaskedDiffusion

DECODERS = ("fixed", "threshold", "factor")
POLICIES = ("none", "prefix", "dual")
PROMPTS = [[5], [3, 1, 4, 1, 5, 9], [2, 6], [5, 3, 5, 8]]


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("sampler", [{}, {"temperature": 0.7}, {"top_k": 5}, {"temperature": 0.7, "top_p": 0.9}])
def test_b003_every_row_is_sampled(llada, decoder, batch, sampler):
    """Not row 0 only: same prompts, other tokens; greedy rows are equal."""
    ids = torch.tensor([[3, 1]] * batch)
    rows = llada.generate(ids, decoder=decoder, max_new_tokens=12, do_sample=bool(sampler), **sampler)
    assert rows.shape[0] == batch
    assert len({tuple(row) for row in rows.tolist()}) == (batch if sampler else 1)


def test_b005_dual_cache_writes_are_per_row(llada):
    options = {"cache_policy": "dual", "block_length": 4, "max_new_tokens": 8, "return_dict_in_generate": True}
    for decoder in DECODERS:
        output = llada.generate(**padded(PROMPTS), decoder=decoder, **options)
        for row, prompt in enumerate(PROMPTS):
            alone = llada.generate(torch.tensor([prompt]), decoder=decoder, **options)
            assert answer(output, row) == answer(alone)


@pytest.mark.parametrize("decoder", ["threshold", "factor"])
@pytest.mark.parametrize("policy", POLICIES)
def test_b007_a_row_without_masks_beside_one_with(decoder, policy):
    """Row 0 is done at once, row 1 takes a step per token; the finished row stays as it was."""
    sure, unsure = [row_of_logits(5, 0.99)] * 20, [row_of_logits(7, 0.3 + i / 100) for i in range(20)]
    model = Scripted(torch.stack(sure + unsure))
    output = model.generate(
        **padded([[1], [1] * 21]), decoder=decoder, cache_policy=policy, block_length=4, max_new_tokens=4,
        threshold=0.9 if decoder == "threshold" else None, return_dict_in_generate=True,
    )  # fmt: skip
    assert [answer(output, row) for row in (0, 1)] == [[5] * 4, [7] * 4]
    slow = 4 if decoder == "threshold" else int(output.num_forwards[1])
    assert output.num_forwards.tolist() == [1, slow] and slow > 1


def chat_model():
    tokenizer = byte_tokenizer()
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("mask", "eos", "pad")}
    return tiny_llada(vocabulary=len(tokenizer), **ids), tokenizer


def test_b009_a_snippet_for_one_prompt_works_for_two():
    model, tokenizer = chat_model()
    texts = ["one", "a longer second prompt"]
    options = {"max_new_tokens": 8, "decoder": "threshold", "threshold": 0.3}
    inputs = tokenizer(texts, padding=True, return_tensors="pt", return_token_type_ids=False)
    both = model.generate(**inputs, **options)[:, inputs.input_ids.shape[1] :]
    for row, text in enumerate(texts):
        one = tokenizer([text], padding=True, return_tensors="pt", return_token_type_ids=False)
        alone = model.generate(**one, **options)[0, one.input_ids.shape[1] :]
        assert torch.equal(both[row, : len(alone)], alone)


def test_b011_the_mask_is_honoured(llada):
    ids, mask = torch.tensor([[5, PAD], [5, 9]]), torch.tensor([[1, 0], [1, 1]])
    with torch.no_grad():
        masked, unmasked = (llada(ids, attention_mask=m).logits for m in (mask, None))
    assert (masked[0, 0] - unmasked[0, 0]).abs().max() > 0.1
    batch = llada.generate(ids, attention_mask=mask, max_new_tokens=8, return_dict_in_generate=True)
    alone = llada.generate(ids[:1, :1], max_new_tokens=8, return_dict_in_generate=True)
    assert answer(batch) == answer(alone)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("policy", POLICIES)
def test_b013_padded_rows_are_finite(tmp_path_factory, dtype, attention, policy):
    """No row is fully masked, and padding gives no NaN; rows at most one rounding away from their single run."""
    model = tiny_llada().to(dtype)
    model.set_attn_implementation(attention)
    bad = []

    def check(module, args, output):
        bad.append(not output.isfinite().all())

    hook = model.lm_head.register_forward_hook(check)
    rows = model.generate(**padded([[1, 2, 3], list(range(9))]), max_new_tokens=8, cache_policy=policy)
    hook.remove()
    assert bad and not any(bad)
    assert len(set(rows[0, 9:].tolist())) > 1


def test_b069_repeated_rows_are_distinct_samples():
    """Flat logits: four rows of sixteen tokens never agree."""
    model = Scripted(torch.zeros(20, 64))
    rows = model.generate(torch.tensor([[1]]), do_sample=True, num_return_sequences=4, max_new_tokens=16)
    assert len({tuple(row) for row in rows.tolist()}) == 4
    with pytest.raises(ValueError, match="num_return_sequences"):
        model.generate(torch.tensor([[1]]), do_sample=False, num_return_sequences=4, max_new_tokens=16)


@pytest.mark.parametrize("storage", ["dynamic", "static"])
def test_b073_no_stale_memory_is_read(llada, storage):
    """Fresh memory is filled with NaN; twenty calls of different shapes give what they give without."""
    options = {"cache_policy": "dual", "cache_implementation": storage, "block_length": 4}
    calls = [{**padded([[n], list(range(1 + n % 7))]), "max_new_tokens": 3 + n % 6} for n in range(20)]
    expected = [llada.generate(**call, **options) for call in calls]
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.utils.deterministic.fill_uninitialized_memory and torch.empty(3).isnan().all()
        assert all(torch.equal(llada.generate(**call, **options), ids) for call, ids in zip(calls, expected))
    finally:
        torch.use_deterministic_algorithms(False)


def test_b075_counts_are_of_returned_text():
    """Prompts of 3 and 9 tokens, an EOS after four tokens and none: no prompt, pad, EOS or tail is counted."""
    cells = [(5, 0.95)] * 6 + [(EOS, 0.95)] + [(6, 0.95)] * 20
    model = Scripted(table(*cells, prompt=1))
    output = model.generate(
        **padded([[1] * 3, [1] * 9]), max_new_tokens=8, block_length=4, decoder="threshold", threshold=0.9,
        return_dict_in_generate=True,
    )  # fmt: skip
    assert [answer(output, row) for row in (0, 1)] == [[5] * 4 + [EOS], [6] * 8]
    assert output.num_forwards.tolist() == [2, 2] and output.tokens_per_forward.tolist() == [2.0, 4.0]


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_b077_attention_sees_the_right_side(implementation):
    """Under every backend, with and without a mask, in a full forward and in a window; eager ids are sdpa ids."""
    model = tiny_llada()
    reference = model.generate(**padded(PROMPTS), max_new_tokens=8, cache_policy="dual", block_length=4)
    model.set_attn_implementation(implementation)
    one, other = torch.tensor([[1, 2, 3]]), torch.tensor([[1, 2, 4]])
    for mask in (None, torch.ones(1, 3).long()):
        with torch.no_grad():
            first = [model(ids, attention_mask=mask).logits[0, 0] for ids in (one, other)]
        assert (first[0] - first[1]).abs().max() > 0.1
    assert torch.equal(
        model.generate(**padded(PROMPTS), max_new_tokens=8, cache_policy="dual", block_length=4), reference
    )


def test_b077_a_backend_that_takes_no_mask_is_refused(llada, monkeypatch):
    monkeypatch.setattr(llada.config, "_attn_implementation_internal", "flash_attention_2")
    with pytest.raises(ValueError, match=r"`attn_implementation` is 'flash_attention_2'.*\['eager', 'sdpa'\]"):
        llada.generate(torch.tensor([[1]]), max_new_tokens=2)


def test_b079_turns_of_a_chat(tmp_path):
    """Output fed back as history: no mask, pad or EOS in it, and each turn is a fresh call with the same ids."""
    model, tokenizer = chat_model()
    model.generation_config.update(eos_token_id=[tokenizer.eos_token_id, 3], max_new_tokens=7, block_length=4)
    model.save_pretrained(tmp_path)
    history = torch.tensor([tokenizer.encode("hello")])
    for _ in range(3):
        longer = model.generate(history)
        fresh = LLaDAForMaskedDiffusion.from_pretrained(tmp_path).generate(history)
        assert torch.equal(longer, fresh) and torch.equal(longer[:, : history.shape[1]], history)
        reply = [t for t in longer[0, history.shape[1] :].tolist() if t not in (tokenizer.eos_token_id, 3)]
        assert not {tokenizer.mask_token_id, tokenizer.pad_token_id} & set(reply)
        history = torch.cat([history, torch.tensor([reply + tokenizer.encode(" and?")])], 1)
    assert MASK
