"""Tests that need several processes."""

import os
import subprocess
import sys
from pathlib import Path


def on_two_processes(script: Path, *arguments: Path) -> None:
    """Runs a script under torchrun, and fails with what it printed if it fails."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [*launcher, str(script), *map(str, arguments)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-4000:]
