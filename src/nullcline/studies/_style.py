"""What the figures of all documents share: size, palette and panel letters."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colors, by what they look like.
BLUE, VERMILION, GREEN, PINK = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
ORANGE, SKY, BLACK, YELLOW = "#E69F00", "#56B4E9", "#000000", "#F0E442"
PALETTE = (BLUE, VERMILION, GREEN, PINK, ORANGE, SKY, BLACK, YELLOW)
GREY = "#777777"
# Signed quantities (λ, weights): blue below zero, red above, white at zero.
DIVERGING = "RdBu_r"

STYLE = Path(__file__).parent.parent / "engine" / "paper.mplstyle"


def figure(
    rows: int = 1,
    columns: int = 1,
    *,
    width: float | None = None,
    height: float | None = None,
    **options: Any,
) -> tuple["Figure", Any]:
    """A figure with its axes (always a ``rows`` × ``columns`` array), in inches as printed.

    By default a panel is 2.4 in wide and 2.0 in high. ``options`` go to ``Figure.subplots``.
    """
    import matplotlib.style
    from matplotlib.figure import Figure

    with matplotlib.style.context(STYLE):
        fig = Figure(figsize=(width or 2.4 * columns, height or 2.0 * rows), layout="constrained")
        axes = fig.subplots(rows, columns, squeeze=False, **options)
    return fig, axes


def letter(axes: "Axes", text: str) -> None:
    """Put a bold panel letter at the upper left of ``axes``."""
    axes.annotate(
        text,
        xy=(0, 1),
        xytext=(-22, 6),
        xycoords="axes fraction",
        textcoords="offset points",
        fontweight="bold",
        fontsize=10,
        annotation_clip=False,
    )


def shades(count: int, name: str = "viridis", *, low: float = 0.0, high: float = 0.85) -> list[Any]:
    """Give ``count`` colors of a sequential map, for an ordered parameter."""
    import matplotlib
    import numpy as np

    return list(matplotlib.colormaps[name](np.linspace(low, high, count)))
