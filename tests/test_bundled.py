"""The bundled model and loading."""

import pytest
import torch
from models import byte_tokenizer, tiny_llada
from peft import PeftModel
from transformers import LlamaConfig, LlamaForCausalLM

from dllm_generate import DiffusionGenerationMixin, bundled
from dllm_generate.bundled import bundled_model, load
from dllm_generate.evaluation.contenders import CONTENDERS, answers_of
from dllm_generate.evaluation.harness import answer_room
from dllm_generate.evaluation.tasks import check, heldout_problems
from dllm_generate.text import decode, encode, reply, special_ids, user


def test_a_wheel_comes_before_the_checkout(tmp_path, monkeypatch):
    monkeypatch.setattr(bundled, "__file__", str(tmp_path / "package" / "bundled.py"))
    with pytest.raises(FileNotFoundError, match=bundled.NAME):
        bundled_model()
    for root in (tmp_path, tmp_path / "package"):
        place = root / "model_cards" / bundled.NAME
        place.mkdir(parents=True)
        (place / "config.json").write_text("{}")
        assert bundled_model() == place


def test_a_model_of_another_class_gets_our_generate(tmp_path):
    tokenizer = byte_tokenizer()
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), is_causal=False, **sizes)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    model, found = load(tmp_path, dtype="float32", device="cpu")
    assert isinstance(model, DiffusionGenerationMixin) and not model.training
    facts = {"mask_token_id": found.mask_token_id, "logits_shift": False, "attention": "bidirectional"}
    answer = reply(model, found, [user("hello")], max_new_tokens=4, eos_token_id=found.eos_token_id, **facts)[0]
    assert 0 <= answer.tokens <= 4 and 1 <= answer.forwards <= 4


def test_conversations_are_padded_on_the_left():
    tokenizer = byte_tokenizer()
    inputs = encode(tokenizer, [user("abc"), user("a")])
    assert inputs["attention_mask"].tolist() == [[1, 1, 1], [0, 0, 1]]
    assert inputs["input_ids"][0, 0] == inputs["input_ids"][1, 2]


def test_history_needs_a_chat_template():
    with pytest.raises(ValueError, match="chat template"):
        encode(byte_tokenizer(), [user("abc", system="be kind")])


def test_a_batch_of_replies_is_the_replies_one_by_one():
    tokenizer = byte_tokenizer()
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("mask", "eos", "pad")}
    model = tiny_llada(vocabulary=len(tokenizer), **ids)
    prompts = [user("abc"), user("d"), user("what?")]
    together = reply(model, tokenizer, prompts, max_new_tokens=8)
    alone = [reply(model, tokenizer, [p], max_new_tokens=8)[0] for p in prompts]
    assert [(r.text, r.tokens, r.forwards) for r in together] == [(r.text, r.tokens, r.forwards) for r in alone]
    assert special_ids(model, tokenizer) == {name: {ids[f"{name}_token_id"]} for name in ("mask", "eos", "pad")}
    assert decode(tokenizer, [ids["eos_token_id"], 5, ids["mask_token_id"]], set(ids.values())) == decode(
        tokenizer, [5], set()
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "float17"}, "`dtype` is 'float17', but must be 'auto' or a dtype of torch"),
        ({"dtype": "nn"}, "`dtype` is 'nn'"),
        ({"device": "quantum"}, "`device` is 'quantum', which torch cannot use here"),
    ],
)
def test_load_refuses_what_torch_has_not(options, message):
    with pytest.raises(ValueError, match=message):
        load(**options)


def test_the_block_causal_sibling_answers_with_an_exact_cache():
    """Its own options are those of its generation config."""
    model, tokenizer = load(bundled_model("dllm-tiny-block"), dtype="float32", device="cpu")
    problems = heldout_problems(n=2)
    options = {"decoder": "threshold", "threshold": 0.99, "max_new_tokens": 64}
    cached, plain = (
        reply(model, tokenizer, [user(p.prompt) for p in problems], **options, **more)
        for more in ({}, {"cache_policy": "none"})
    )
    assert [r.text for r in cached] == [r.text for r in plain]
    assert [r.forwards for r in cached] == [r.forwards for r in plain]
    assert sum(check(p, r.text) for p, r in zip(problems, cached)) >= 9
    with pytest.raises(ValueError, match="'blockwise', which needs bidirectional attention"):
        reply(model, tokenizer, [user("Add 1 and 2 column by column.")], schedule="blockwise", max_new_tokens=4)


def test_the_adapter_of_the_d2f_student_is_its_merged_model():
    base, tokenizer = load(bundled_model("dllm-tiny-long"), dtype="float32", device="cpu")
    merged, _ = load(bundled_model("dllm-tiny-d2f"), dtype="float32", device="cpu")
    assert merged.generation_config.schedule == "pipelined"
    student = PeftModel.from_pretrained(base, bundled_model("dllm-tiny-d2f") / "adapter").eval()
    ids = encode(tokenizer, [user(p.prompt) for p in heldout_problems(["add"], n=2)])
    with torch.no_grad():
        one, other = (model(**ids).logits for model in (student, merged))
        with student.disable_adapter():
            plain = student(**ids).logits
    # The merged weights are rounded to bfloat16.
    assert (one - other).abs().max() < 0.2 * (one - plain).abs().max()


@pytest.mark.parametrize(
    ("teacher", "student", "tasks", "threshold"),
    [
        ("dllm-tiny", "dllm-tiny-td", ["add", "total"], 0.98),
        ("dllm-tiny-long", "dllm-tiny-long-td", ["add", "record", "map"], 0.98),
        ("dllm-tiny-long", "dllm-tiny-long-td", ["table"], 0.999),
    ],
)
def test_a_distilled_sibling_writes_more_tokens_per_forward(teacher, student, tasks, threshold):
    problems = heldout_problems(tasks, n=12 // len(tasks), level=3)
    counts = []
    for name in (teacher, student):
        model, tokenizer = load(bundled_model(name), dtype="float32", device="cpu")
        options = {"decoder": "threshold", "threshold": threshold, "block_length": 96, "cache_policy": "dual"}
        room = answer_room(tokenizer, problems)
        replies = reply(model, tokenizer, [user(p.prompt) for p in problems], max_new_tokens=room, **options)
        assert sum(check(p, r.text) for p, r in zip(problems, replies)) >= 9
        counts.append(sum(r.tokens for r in replies) / sum(r.forwards for r in replies))
    assert counts[1] > 1.2 * counts[0]


def test_long_answers_come_from_the_pipeline_and_from_the_causal_twin():
    problems = heldout_problems(["table"], n=4, level=3)
    for contender in (c for c in CONTENDERS if c.name in ("D2F, pipelined", "autoregressive, dynamic cache")):
        replies = answers_of(contender, "float32")(problems, {"max_new_tokens": 520})
        assert sum(check(p, r.text) for p, r in zip(problems, replies)) >= 3
