"""D2F's training: the noise, what the student sees, and the loss on stored logits."""

import pytest
import torch
from kit import cases, documented, tensors

from dllm_generate.training.base import shifted
from dllm_generate.training.d2f import D2F, monotone_rates
from dllm_generate.training.data import Batch
from dllm_generate.training.losses import asked, asked_logits, distillation_loss

CASES = {case["id"]: case for case in cases("scripted/d2f_training_loss")}
TENSORS = tensors("scripted/d2f_training_loss")


class Stored(torch.nn.Module):
    """A model that returns stored logits."""

    def __init__(self, logits):
        super().__init__()
        self.logits = torch.nn.Parameter(logits.float())
        self.config = type("Config", (), {"_attn_implementation": "sdpa"})

    def forward(self, logits_to_keep, **inputs):
        return type("Output", (), {"logits": self.logits[:, logits_to_keep]})


def batch_of(case):
    ids, prompts = torch.tensor(case["input_ids"]), torch.tensor(case["question_length"])
    room = ids.shape[1] - prompts
    return Batch(ids, prompts, room, room)


def published_noise(batch, block_length, seed):
    """The published order of draws: first rates, increments, then the cells, row by row and block by block."""
    torch.manual_seed(seed)
    counts = -(-batch.canvas_lengths // block_length)
    first, more = torch.rand(batch.rows, 1), torch.rand(batch.rows, int(counts.max()) - 1)
    draws = torch.ones(batch.input_ids.shape)
    for row, prompt in enumerate(batch.prompt_lengths.tolist()):
        for low in range(prompt, batch.width, block_length):
            high = min(low + block_length, batch.width)
            draws[row, low:high] = torch.rand(1, high - low)[0]
    return torch.cat([first, more], 1), draws


@pytest.mark.parametrize("name", CASES)
def test_noise_attention_and_loss(name):
    case = CASES[name]
    batch = batch_of(case)
    shift = case["mode"] == "dream"
    objective = D2F(case["mask_id"], case["block_size"], self_align=case["self_align"], logits_shift=shift)
    uniform, draws = published_noise(batch, case["block_size"], case["torch_seed"])
    seen = objective.hide(batch, monotone_rates(uniform, *objective.noise_range), draws)
    assert seen.input_ids.tolist() == case["noisy_batch"]
    rows = [["".join(str(int(cell)) for cell in query) for query in mask] for mask in seen.allowed[:, 0]]
    assert rows == case["student_attention_allowed"]

    seen = shifted(seen) if shift else seen
    student, teacher = (asked_logits(Stored(TENSORS[f"{name}_{who}"]), seen) for who in ("student", "teacher"))
    wanted = teacher if case["self_align"] else asked(seen.labels, seen, student)
    loss = distillation_loss(student, wanted, asked(seen.weights, seen, student))
    assert loss.item() == pytest.approx(case["loss"], rel=1e-5)


def test_the_documented_numbers():
    assert documented("d2f_training_loss") == (len(CASES), len(CASES), 0, 0, 0)
