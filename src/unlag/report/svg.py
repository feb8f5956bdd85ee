"""Drawing: a few shapes with escaped texts, for charts that need no script and no network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from unlag.report.document import clean

CHARACTER_WIDTH = 6.6
"""Of the 12 px sans-serif text, on average; for leaving room only."""


@dataclass(frozen=True)
class Scale:
    """Values to pixels, straight."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The pixel of a value; what lies outside is drawn at the border."""
        share = (value - self.low) / ((self.high - self.low) or 1.0)
        return self.start + (self.end - self.start) * min(max(share, 0.0), 1.0)

    def ticks(self) -> tuple[list[float], int]:
        """Some round values inside, and the decimals that tell them apart."""
        span = (self.high - self.low) or 1.0
        step = 10 ** math.floor(math.log10(span / 4))
        step *= next((factor for factor in (1, 2, 5) if span / (step * factor) <= 6), 10)
        first = math.ceil(self.low / step)
        values = [k * step for k in range(first, math.floor(self.high / step + 1e-9) + 1)]
        return values, max(0, -math.floor(math.log10(step)))


class Drawing:
    """An SVG picture that grows shape by shape."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._width, self._height, self._title = width, height, title
        self._parts: list[Markup] = []

    def rectangle(self, x: float, y: float, width: float, height: float, kind: str, hint: str = "") -> None:  # noqa: PLR0913, PLR0917 - a rectangle has four numbers
        """A filled rectangle; widths below zero grow to the left."""
        left, across = (x, width) if width >= 0 else (x + width, -width)
        self._add(
            '<rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}">{}</rect>',
            kind, left, y, max(across, 0.5), height, _hint(hint),
        )  # fmt: skip

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str) -> None:
        """A straight line."""
        self._add('<line class="{}" x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}"/>', kind, x1, y1, x2, y2)

    def dot(self, x: float, y: float, kind: str, hint: str = "", radius: float = 3.0) -> None:
        """A filled circle."""
        self._add('<circle class="{}" cx="{:.1f}" cy="{:.1f}" r="{}">{}</circle>', kind, x, y, radius, _hint(hint))

    def text(self, x: float, y: float, text: str, anchor: str = "start", kind: str = "") -> None:
        """A line of text; ``anchor`` is start, middle or end."""
        self._add('<text class="{}" x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>', kind, x, y, anchor, clean(text))

    def axis(self, scale: Scale, y: float, top: float, unit: str) -> None:
        """A scale below the picture with faint lines up."""
        ticks, decimals = scale.ticks()
        for tick in ticks:
            self.line(scale(tick), top, scale(tick), y, "grid")
            label = f"{tick:.{decimals}f}".replace("-", "−")
            self.text(scale(tick), y + 14, f"{label}{unit}", "middle", "tick")

    def render(self) -> Markup:
        """The picture; its title is what screen readers say."""
        size = 'viewBox="0 0 {0} {1}" width="{0}" height="{1}"'
        head = Markup(f'<svg {size} role="img" xmlns="http://www.w3.org/2000/svg">')  # noqa: S704 - constants
        title = Markup("<title>{}</title>").format(clean(self._title))
        return head.format(self._width, self._height) + title + Markup("").join(self._parts) + Markup("</svg>")

    def _add(self, template: str, *values: object) -> None:
        self._parts.append(Markup(template).format(*values))  # noqa: S704 - templates above are constants; format escapes


def room_for(labels: Sequence[str], most: int = 260) -> float:
    """Pixels that the longest label takes, within reason."""
    return min(max((len(clean(label)) for label in labels), default=0) * CHARACTER_WIDTH + 10, most)


def shortened(text: str, pixels: float) -> str:
    """The text, cut to what fits; pictures only, the tables beside them have it whole."""
    fits = max(4, int(pixels / CHARACTER_WIDTH))
    return text if len(text) <= fits else text[: fits - 1] + "…"


def _hint(text: str) -> Markup:
    return Markup("<title>{}</title>").format(clean(text)) if text else escape("")
