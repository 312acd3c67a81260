"""One thread, one seed, bounded and repeatable property tests."""

import os

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from models import byte_tokenizer, tiny_llada

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
settings.register_profile(
    "bounded",
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    # Not the phase that explains: it lists lines of torch.
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
)
settings.load_profile("bounded")


@pytest.fixture(autouse=True)
def one_thread_one_seed():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def llada():
    return tiny_llada()


@pytest.fixture(scope="module")
def tokenizer():
    return byte_tokenizer()
