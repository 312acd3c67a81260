"""Where examples come from: files, saved data sets, the bundled tasks."""

import json

import pytest
from models import byte_tokenizer

from dllm_generate import bundled
from dllm_generate.evaluation.tasks import TASKS, is_heldout
from dllm_generate.training.data import ExampleBatches, encode
from dllm_generate.training.sources import DatasetSource, JsonlSource, TaskSource, conversation_of

TEMPLATE = (
    "{% for m in messages %}{{ '[' + m['role'][0] + ']' + m['content'] }}"
    "{% if m['role'] == 'assistant' %}{{ END + '\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}[a]{% endif %}"
)
RECORDS = [
    {"prompt": "a", "answer": "b"},
    {
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": "c"},
            {"role": "assistant", "content": "d"},
        ]
    },
]


@pytest.fixture
def tokenizer():
    made = byte_tokenizer()
    made.chat_template = TEMPLATE.replace("END", "'<eos>'")
    return made


def written(path, records):
    path.write_text("\n\n".join(map(json.dumps, records)))
    return str(path)


def texts(tokenizer, pairs):
    return [tuple(tokenizer.decode(ids) for ids in pair) for pair in pairs]


def test_prompts_and_messages(tmp_path, tokenizer):
    source = JsonlSource(written(tmp_path / "a.jsonl", RECORDS))
    found = texts(tokenizer, source.examples(tokenizer, 100)(0, 0, 2))
    assert sorted(found) == [("[s]s[u]c[a]", "d<eos>"), ("[u]a[a]", "b<eos>")]


@pytest.mark.parametrize(
    ("end", "answer"), [("'<eos>'", "b<eos>"), ("'<pad>'", "b<pad><eos>"), ("''", "b<eos>"), ("'!'", "b!<eos>")]
)
def test_an_answer_ends_as_in_the_template_and_with_one_eos(tokenizer, end, answer):
    tokenizer.chat_template = TEMPLATE.replace("END", end)
    assert texts(tokenizer, [encode(tokenizer, "a", "b")]) == [("[u]a[a]", answer)]


def test_a_template_that_trims_or_rewrites_answers(tokenizer):
    trimming = TEMPLATE.replace("END", "'<pad>'").replace("m['content']", "m['content'] | trim")
    tokenizer.chat_template = trimming
    assert texts(tokenizer, [encode(tokenizer, "a", "b\n")]) == [("[u]a[a]", "b<pad><eos>")]
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] | upper }}{% endfor %}"
    assert texts(tokenizer, [encode(tokenizer, "a", "b")]) == [("A", "b<eos>")]


def test_a_tokenizer_without_template_takes_one_message():
    plain = byte_tokenizer()
    assert texts(plain, [encode(plain, "a", "b")]) == [("a", "b<eos>")]
    with pytest.raises(ValueError, match="no chat template"):
        encode(plain, RECORDS[1]["messages"][:2], "d")


@pytest.mark.parametrize(
    "record",
    [
        3,
        {},
        {"prompt": "a"},
        {"prompt": "a", "answer": " "},
        {"messages": []},
        {"messages": [{"role": "assistant", "content": "a"}]},
        {"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]},
        {"messages": [{"role": "user"}, {"role": "assistant", "content": "b"}]},
    ],
)
def test_records_of_another_form(record):
    with pytest.raises(ValueError, match='f.jsonl, line 3 must be {"prompt": text, "answer": text}'):
        conversation_of(record, "f.jsonl, line 3")


def test_files_that_cannot_be_used(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"prompt": "a", "answer": "b"}\n{"prompt')
    with pytest.raises(ValueError, match="a.jsonl, line 2 is no JSON"):
        JsonlSource(str(tmp_path / "a.jsonl")).read()
    with pytest.raises(ValueError, match="at least one example"):
        JsonlSource(written(tmp_path / "b.jsonl", [])).read()


def test_every_epoch_shows_each_example_once_in_another_order(tmp_path):
    tokenizer = byte_tokenizer()
    records = [{"prompt": str(n), "answer": str(n)} for n in range(10)]
    source = JsonlSource(written(tmp_path / "a.jsonl", records))
    make = source.examples(tokenizer, 100)
    seen = [prompt for step in range(5) for prompt, _ in texts(tokenizer, make(1, step, 4))]
    first, second = seen[:10], seen[10:]
    assert sorted(first) == sorted(second) == [str(n) for n in range(10)] and first != second
    again = JsonlSource(source.file).examples(tokenizer, 100)
    assert again(1, 3, 4) == make(1, 3, 4) and again(2, 3, 4) != make(1, 3, 4)


def test_long_examples_are_left_out(tmp_path):
    tokenizer = byte_tokenizer()
    records = [{"prompt": "a", "answer": "b" * length} for length in (1, 2, 30)]
    source = JsonlSource(written(tmp_path / "a.jsonl", records))
    lengths = {len(answer) for _, answer in source.examples(tokenizer, 5)(0, 0, 8)}
    assert lengths == {2, 3}
    with pytest.raises(ValueError, match="`max_length` is 2, but must be at least 3"):
        source.examples(tokenizer, 2)


def test_no_canvas_is_longer_than_the_limit():
    batches = ExampleBatches(lambda seed, step, count: [([3] * 5, [4] * 5)] * count, 1, 60, 4, 2, max_length=12)
    widths = {batches[i].width for i in range(len(batches))}
    assert widths == {10, 11, 12}
    with pytest.raises(ValueError, match="`parts` is 3, but must be a divisor of `rows`, which is 4"):
        ExampleBatches(lambda *_: [], 1, 1, rows=4, parts=3)


def test_tasks_have_weights_a_seed_and_no_held_out_problem():
    _, tokenizer = bundled.load()
    make = TaskSource({"add": 3, "map": 1}, level=0).examples(tokenizer, 200)
    found = texts(tokenizer, make(0, 0, 200))
    prompts = [prompt.removeprefix("<|user|>").removesuffix("<|assistant|>") for prompt, _ in found]
    assert not any(map(is_heldout, prompts))
    assert 120 < sum("column" in prompt for prompt in prompts) < 180
    assert make(0, 0, 4) != make(1, 0, 4) != make(1, 1, 4)
    fixed = TaskSource(level=0, seed=7).examples(tokenizer, 200)
    assert fixed(0, 2, 4) == fixed(1, 2, 4) == TaskSource(level=0).examples(tokenizer, 200)(7, 2, 4)
    assert set(TASKS) >= {"add", "map"}
    with pytest.raises(ValueError, match="`max_length` is 5, but must be at least"):
        TaskSource().examples(tokenizer, 5)


def test_a_saved_data_set(tmp_path, tokenizer):
    datasets = pytest.importorskip("datasets", reason="an optional library")
    table, small = (
        # With a name of its own, which some pairs of pyarrow and dill cannot make.
        datasets.Dataset(datasets.table.InMemoryTable.from_pydict({"prompt": names, "answer": names}), fingerprint="x")
        for names in (["a", "b"], ["c"])
    )
    table.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": table, "test": small}).save_to_disk(tmp_path / "two")
    for folder, split, count in (("one", "train", 2), ("two", "train", 2), ("two", "test", 1)):
        source = DatasetSource(str(tmp_path / folder), split)
        source.read()
        assert len(set(texts(tokenizer, source.examples(tokenizer, 100)(0, 0, 4)))) == count
    with pytest.raises(ValueError, match=r"`split` is 'dev', but must be one of \['test', 'train'\]"):
        DatasetSource(str(tmp_path / "two"), "dev").read()


def test_a_data_set_without_the_library(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(ImportError, match="pip install datasets"):
        DatasetSource("x").read()
