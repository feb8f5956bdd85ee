"""``import unlag`` is quick, whatever is installed."""

from __future__ import annotations

import subprocess
import sys

LONGEST_S = 0.3
CODE = "import time; begin = time.perf_counter(); import unlag; print(time.perf_counter() - begin)"


def test_import_takes_less_than_0_3_seconds():
    runs = [subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True) for _ in range(3)]
    assert min(float(run.stdout) for run in runs) < LONGEST_S
