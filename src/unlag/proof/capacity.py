"""How many contenders may be alive at once: a contest of repaired copies must not fill the machine's memory."""

from __future__ import annotations

import psutil

from unlag.measure.comparison import Comparison

SIZES, ROOM_BYTES = 4, 500_000_000
"""All processes together stay below so many sizes of the larger model and this room for programs and libraries."""
AVAILABLE_SHARE = 0.5
"""And below this share of the memory that is free."""
FEWEST = 3
"""Two anchors and a copy: with fewer there is nothing to compare."""


def contenders_at_once(comparison: Comparison, room_bytes: float | None = None) -> int:
    """Contenders that fit into memory together, at least ``FEWEST``.

    They may take ``room_bytes``; without that, ``SIZES`` sizes of the larger model and ``ROOM_BYTES``.

    A process takes its peak while it loads, when the file and the weights made from it are there at once; after that it
    holds about the file's size less.
    """
    sides = (comparison.standard, comparison.variant)
    size_bytes = max(side.size_bytes for side in sides)
    peak_bytes = max(side.peak_memory_bytes for side in sides)
    steady_bytes = max(peak_bytes - size_bytes, peak_bytes // 2, 1)
    wanted_bytes = SIZES * size_bytes + ROOM_BYTES if room_bytes is None else room_bytes
    limit_bytes = min(wanted_bytes, AVAILABLE_SHARE * psutil.virtual_memory().available)
    own_bytes = psutil.Process().memory_info().rss
    return max(FEWEST, 1 + int((limit_bytes - own_bytes - peak_bytes) / steady_bytes))
