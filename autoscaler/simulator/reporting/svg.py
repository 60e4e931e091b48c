"""Figures as SVG that takes its colors and its font from the surrounding page.

matplotlib writes fixed colors. The colors of the palette are placeholders that are replaced by
CSS variables, so that one picture is readable on a light and on a dark page.
"""

import io
import re
from collections.abc import Callable
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

#: Text and lines; labels and axes; the grid; the oracle, as the reference; misses of the SLA.
INK, FAINT, GRID, ORACLE, BAD = "#010101", "#020202", "#030303", "#040404", "#050505"
SERIES = tuple(f"#0606{number:02x}" for number in range(1, 9))
_VARIABLES = {
    INK: "ink",
    FAINT: "faint",
    GRID: "grid",
    ORACLE: "oracle",
    BAD: "bad",
    **{color: f"series-{number}" for number, color in enumerate(SERIES, 1)},
}
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "sojourn",
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": FAINT,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlepad": 5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "lines.solid_capstyle": "round",
    "legend.frameon": False,
}
WIDTH_IN = 10.0


def to_svg(draw: Callable[[Figure], None], height_in: float, name: str) -> str:
    """Draw a figure and return it as an SVG element; `name`, unique on a page, begins its ids."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained")
        draw(figure)
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True)
    text = file.getvalue()
    text = text[text.index("<svg") :].strip()
    text = re.sub(r"<style.*?</style>", "", text, count=1, flags=re.DOTALL)
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r' (?:xmlns(?::xlink)?|version)="[^"]*"', "", text).replace("xlink:href", "href")
    text = re.sub(r' width="[^"]*" height="[^"]*"', "", text, count=1)
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", text)
    # Replace `font: 10px 'DejaVu Sans', ...` by its size and its weight, if it has one.
    text = re.sub(r"font: (?:(bold|\d00) )?([\d.]+px)[^;\"]*", _without_family, text)
    for color, variable in _VARIABLES.items():
        text = text.replace(color, f"var(--{variable})")
    return text


def _without_family(match: re.Match[str]) -> str:
    weight, size = match.groups()
    return f"font-size: {size}" + (f"; font-weight: {weight}" if weight else "")
