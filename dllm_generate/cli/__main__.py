"""`python -m dllm_generate.cli` is `dllm-generate`."""

from . import app

app(prog_name="dllm-generate")
