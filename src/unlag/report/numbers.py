"""How numbers are written for people: as many decimals as mean something, and a real minus sign."""

from __future__ import annotations

import math

from unlag.measure.statistics import Interval

UNKNOWN = "–"


def number(value: float, decimals: int) -> str:
    """A number with a real minus; minus zero is zero."""
    if not math.isfinite(value):
        return "?" if math.isnan(value) else ("∞" if value > 0 else "−∞")
    text = f"{value:.{decimals}f}"
    if text.startswith("-"):
        text = text[1:] if float(text) == 0 else "−" + text[1:]
    return text


def ms_decimals(like_ms: float) -> int:
    """Decimals for times of about this size; one table keeps to one."""
    size = abs(like_ms)
    if not math.isfinite(size) or size >= 1000:
        return 0
    return 1 if size >= 10 else 2 if size >= 1 else 3


def milliseconds(value_ms: float, like_ms: float | None = None) -> str:
    """A time, such as ``23.4 ms``."""
    return f"{number(value_ms, ms_decimals(value_ms if like_ms is None else like_ms))} ms"


def plus_minus(interval: Interval, decimals: int) -> str:
    """An estimate with half its interval, such as ``44.8 ± 0.9``."""
    return f"{number(interval.estimate, decimals)} ± {half(interval, decimals)}"


def half(interval: Interval, decimals: int) -> str:
    """Half the width of an interval; a question mark where it has no bounds."""
    return number((interval.high - interval.low) / 2, decimals) if _bounded(interval) else "?"


def milliseconds_of(interval: Interval | None, like_ms: float | None = None) -> str:
    """A time with half its interval, such as ``44.8 ± 0.9 ms``."""
    if interval is None:
        return UNKNOWN
    return f"{plus_minus(interval, ms_decimals(interval.estimate if like_ms is None else like_ms))} ms"


def points_of(interval: Interval | None) -> str:
    """Accuracy points with half their interval."""
    return UNKNOWN if interval is None else f"{plus_minus(interval, 1)} points"


def _bounded(interval: Interval) -> bool:
    return math.isfinite(interval.low) and math.isfinite(interval.high)


def ratio_decimals(value: float) -> int:
    """Near 1 the third decimal decides."""
    return 3 if 0.9 < value < 1.1 else 2


def factor(value: float) -> str:
    """A ratio for a headline, such as ``3.2×`` or ``1.07×``."""
    decimals = 1 if value >= 1.995 else 2
    if 1 < value < 1.1 and round(value, 2) in {1.0, 1.01}:
        decimals = 3
    return f"{number(value, decimals)}×"


def ratio_of(interval: Interval) -> str:
    """A ratio with its interval, such as ``3.23× (3.19–3.28)``."""
    decimals = ratio_decimals(interval.estimate)
    return f"{number(interval.estimate, decimals)}× ({ratio_range(interval)})"


def ratio_range(interval: Interval) -> str:
    """Both ends of a ratio's interval."""
    if not math.isfinite(interval.high):
        return "unbounded"
    decimals = ratio_decimals(interval.estimate)
    return f"{number(interval.low, decimals)}–{number(interval.high, decimals)}"


def points_range(interval: Interval) -> str:
    """Both ends of an interval of points."""
    return f"{number(interval.low, 1)} … {number(interval.high, 1)}"


def noise_floor(noise: Interval) -> str:
    """How far the control's interval lies from 1."""
    floor = max(noise.high - 1, 1 - noise.low)
    return f"±{number(100 * floor, 1)} %" if math.isfinite(floor) else "unknown"


def percent(share: float | None) -> str:
    """A share of 1 in whole per cent."""
    return UNKNOWN if share is None else f"{number(100 * share, 0)} %"


def size(size_bytes: float) -> str:
    """A size in decimal units."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= scale:
            return f"{number(size_bytes / scale, 1)} {unit}"
    return f"{size_bytes:.0f} bytes"


def inverse(ratio: Interval) -> Interval:
    """The interval of 1 / ratio."""
    return Interval(_over(ratio.estimate), _over(ratio.high), _over(ratio.low))


def _over(value: float) -> float:
    return 1 / value if value else math.inf
