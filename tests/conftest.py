"""One thread, no gradients, bounded and repeatable property tests."""

import os

import pytest
import torch
from hypothesis import HealthCheck, settings
from models import byte_tokenizer, tiny_llada

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
settings.register_profile(
    "bounded", derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)
settings.load_profile("bounded")


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def llada():
    return tiny_llada()


@pytest.fixture(scope="session")
def tokenizer():
    return byte_tokenizer()
