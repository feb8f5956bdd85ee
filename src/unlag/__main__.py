"""``python -m unlag``."""

from __future__ import annotations

import sys

from unlag.cli import main

if __name__ == "__main__":
    sys.exit(main())
