"""Calls leave nothing behind: for the next call, for another thread, for other models."""

import subprocess
import sys
import threading

import torch
from models import MASK, padded, tiny_llada
from probes import DECODERS, POLICIES
from transformers import GPT2Config, GPT2LMHeadModel


def calls():
    """Twenty different calls: decoders, policies, lengths, batches, sampling, storage."""
    generator = torch.Generator().manual_seed(1)
    for number in range(20):
        rows = [torch.randint(0, MASK, (n,), generator=generator).tolist() for n in range(1, 2 + number % 3 * 4, 2)]
        options = {**DECODERS[number % len(DECODERS)], **POLICIES[number % len(POLICIES)]}
        options |= {"max_new_tokens": 3 + number % 9, "block_length": 2 + number % 5, "do_sample": number % 4 == 3}
        options |= {"cache_implementation": "static" if number % 2 else None}
        if "steps" in options:
            options["block_length"] = 8
        yield {**padded(rows), **options}


def run(model, call):
    torch.manual_seed(0)
    return model.generate(**call)


def test_twenty_calls_in_a_row_are_fresh_calls(llada):
    results = [run(llada, call) for call in calls()]
    for call, result in zip(calls(), results):
        assert torch.equal(run(tiny_llada(), call), result)


def test_threads_share_a_model(llada):
    """Each thread gets what it gets alone; greedy, since torch's seed is one for all threads."""
    todo = [{**call, "do_sample": False} for call in calls()]
    expected, got = [llada.generate(**call) for call in todo], {}

    def work(share):
        for number in share:
            got[number] = llada.generate(**todo[number])

    threads = [threading.Thread(target=work, args=(range(start, 20, 2),)) for start in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(got[number], ids) for number, ids in enumerate(expected))


def test_an_error_in_the_middle_leaves_the_model_usable(llada):
    call = {**padded([[1, 2], [3]]), "max_new_tokens": 6, "cache_policy": "dual"}
    expected = llada.generate(**call)

    def fail(*args):
        raise RuntimeError("stop")

    hook = llada.model.layers[1].register_forward_pre_hook(fail)
    try:
        llada.generate(**call)
    except RuntimeError as error:
        assert str(error) == "stop"
    finally:
        hook.remove()
    assert torch.equal(llada.generate(**call), expected)


PLAIN = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.generation import GenerationMixin

def answers():
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_embd=16, n_head=2, n_layer=1, vocab_size=64, eos_token_id=None)).eval()
    return [
        model.generate(torch.ones(1, 3).long(), max_new_tokens=8, do_sample=s, pad_token_id=0).tolist() for s in (0, 1)
    ]

attributes, before = dict(vars(GenerationMixin)), answers()
import dllm_generate
assert attributes == dict(vars(GenerationMixin)) and before == answers()
print("same", len(before[1][0]))
"""


def test_import_leaves_other_models_alone():
    """In a process of its own: nothing of transformers' mixin is replaced, and a plain model writes what it wrote."""
    run = subprocess.run([sys.executable, "-c", PLAIN], capture_output=True, text=True, check=True)
    assert run.stdout == "same 11\n"


def test_a_diffusion_model_beside_an_autoregressive_one(llada):
    torch.manual_seed(0)
    other = GPT2LMHeadModel(GPT2Config(n_embd=16, n_head=2, n_layer=1, vocab_size=64, eos_token_id=None)).eval()
    ids = torch.tensor([[1, 2, 3]])
    before = other.generate(ids, max_new_tokens=6, do_sample=False)
    llada.generate(ids, max_new_tokens=6)
    assert torch.equal(other.generate(ids, max_new_tokens=6, do_sample=False), before)
