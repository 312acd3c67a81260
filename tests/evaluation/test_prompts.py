"""Prompts of files and of the bundled tasks, and how answers are judged."""

import pytest

from dllm_generate.evaluation.prompts import gives, read_prompts, task_prompts
from dllm_generate.evaluation.tasks import STANDARD_TASKS


@pytest.mark.parametrize(
    ("answer", "text", "right"),
    [
        ("42", "42", True),
        ("42", "So it is 42.", True),
        ("Paris", "  the answer:\n PARIS ", True),
        ("a  b", "a\nb", True),
        ("12", "12.", True),
        ("12", "12.5", False),
        ("1", "1,000", False),
        ("8", "18", False),
        ("8", "x8", False),
        ("5", "-5", False),
        ("5", "it is -5", False),
        ("5", "10-5", True),
        ("-5", "-5", True),
        ("x (a)", "x (a)", True),
        ("cat", "concatenate", False),
        ("ｆｕｌｌ", "full", True),
        ("42", "", False),
    ],
)
def test_an_answer_is_the_reference_or_contains_it(answer, text, right):
    assert gives(answer, text) is right


def test_a_text_file_holds_a_prompt_per_line(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text("one\n\n two \n", encoding="utf-8")
    prompts = read_prompts(path)
    assert [prompt.text for prompt in prompts] == ["one", "two"]
    assert all(prompt.is_right is None for prompt in prompts)


def test_json_lines_with_answers_are_judged(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "6 x 7", "answer": 42}\n{"prompt": "capital", "answer": "Paris", "id": 1}\n')
    six, capital = read_prompts(path)
    assert six.is_right("It is 42") and not six.is_right("It is 420")
    assert capital.is_right("paris")
    path.write_text('{"prompt": "a"}\n')
    assert read_prompts(path)[0].is_right is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no prompt"),
        ('{"prompt": "a"}\nword', "line 2 is no JSON"),
        ('{"text": "a"}', 'line 1 must be a JSON object whose "prompt"'),
        ('["a"]', "line 1 must be"),
        ('{"prompt": " "}', "not empty"),
        ('{"prompt": "a", "answer": "."}', "line 1 has the \"answer\" '.'"),
        ('{"prompt": "a", "answer": ["b"]}', "a text that is not empty, or a number"),
        ('{"prompt": "a", "answer": "b"}\n{"prompt": "c"}', "for 1 of 2 prompts"),
    ],
)
def test_a_bad_file_is_an_error_that_names_the_line(tmp_path, text, message):
    path = tmp_path / "prompts.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_prompts(path)


def test_problems_of_the_bundled_tasks_come_mixed_and_judged():
    prompts = task_prompts(n=3, seed=1, level=0)
    texts = lambda prompts: [prompt.text for prompt in prompts]
    assert len(prompts) == 3 * len(STANDARD_TASKS) and texts(prompts) == texts(task_prompts(n=3, seed=1, level=0))
    assert all(prompt.is_right(prompt.answer) and not prompt.is_right("?") for prompt in prompts)
    with pytest.raises(ValueError, match="`level` is 4"):
        task_prompts(level=4)
