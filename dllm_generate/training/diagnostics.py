"""What a model has learnt so far, by kind of token: seconds instead of minutes of decoding."""

import random
from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from .data import collate, encode
from .objectives import BlockDiffusion, CausalLM, Objective, logits_of


def token_classes(texts: Sequence[str], words: frozenset[str]) -> list[str]:
    """Class of each token of an answer: "result" (digit behind "="), "digit", "word" (one of `words`) or "template".

    Args:
        texts: the answer's tokens as text, in order.
        words: texts that can only be copied from the prompt.

    Returns:
        One class name per token.
    """
    classes, result = [], False
    for text in texts:
        if text.isdigit():
            classes.append("result" if result else "digit")
            continue
        result = text == "=" or text.startswith("Sum")
        classes.append("word" if text in words or (len(text) == 1 and text.isalpha()) else "template")
    return classes


@torch.no_grad()
def class_accuracy(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    problems: Sequence[tuple[str, str, str]],
    words: frozenset[str],
    causal: bool = False,
) -> dict[str, dict[str, float]]:
    """Accuracy of every answer token, each predicted from the true text before it, in one forward per task.

    Args:
        model: the model, block-causal or, with `causal`, autoregressive.
        tokenizer: its tokenizer.
        problems: triples of task, prompt and answer.
        words: see `token_classes`.
        causal: whether the model predicts the next token rather than a masked one.

    Returns:
        task -> class -> accuracy; class "answer" is the share of answers that are right at every token.
    """
    objective: Objective = CausalLM() if causal else BlockDiffusion(tokenizer.mask_token_id, block_sizes=(1,), tail=0)
    report = {}
    was_training = model.training
    model.eval()
    for task in dict.fromkeys(task for task, _, _ in problems):
        pairs = [encode(tokenizer, prompt, answer) for name, prompt, answer in problems if name == task]
        report[task] = _task_accuracy(model, tokenizer, pairs, words, objective)
    model.train(was_training)
    return report


def _task_accuracy(
    model: nn.Module, tokenizer: PreTrainedTokenizerBase, pairs: list, words: frozenset[str], objective: Objective
) -> dict[str, float]:
    right = _teacher_forced(model, pairs, tokenizer.eos_token_id, objective)
    hits: dict[str, list[bool]] = defaultdict(list)
    for (_, answer), row in zip(pairs, right, strict=True):
        classes = token_classes([str(tokenizer.decode([i])) for i in answer[:-1]], words)
        for name, hit in zip([*classes, "template"], row, strict=True):
            hits[name].append(hit)
        hits["answer"].append(all(row))
    return {name: round(sum(values) / len(values), 3) for name, values in sorted(hits.items())}


def _teacher_forced(model: nn.Module, pairs: list, eos_token_id: int, objective: Objective) -> list[list[bool]]:
    batch = collate(pairs, eos_token_id, random.Random(0))
    seen = objective.example(batch, torch.Generator().manual_seed(0))
    right: Tensor = logits_of(model, seen).argmax(-1).cpu() == seen.labels
    # Two noisy copies ask for complementary tokens of an answer, so order by position gives the answer back.
    rows = []
    for row in range(len(pairs)):
        asked = seen.weights[row].nonzero()[:, 0]
        rows.append(right[row, asked[seen.position_ids[row, asked].argsort()]].tolist())
    return rows
