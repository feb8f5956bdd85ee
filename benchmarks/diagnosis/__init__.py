"""unlag's hit rate: causes planted in real models, healthy twins, and several causes at once.

Run it from a checkout as ``python -m benchmarks.diagnosis``. What is planted comes from the tests' zoo, so the
tests' folder is put on the path here, before any module below is imported.
"""

import sys
from pathlib import Path

TESTS = Path(__file__).parents[2] / "tests"

if str(TESTS) not in sys.path:
    sys.path.insert(0, str(TESTS))
