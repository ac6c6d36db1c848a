"""Figure S2: singular values and eigenvalues of trained networks."""

from collections.abc import Iterator

import numpy as np

from ...engine import Claim, Grid, Study
from .. import _style as style
from .._lazy import xr
from ._networks import MODES, TASKS, TITLES, is_converged, measured
from .fig1 import HIDDEN

COLORS = {0.0: style.BLACK, 0.9: style.VERMILION, 1.8: style.ORANGE}


class Spectra(Study):
    """Singular values and eigenvalues of the weights and of their change, for three tasks and three g."""

    source = "schuessler2020/figS2"
    presets = {
        "quick": Grid(task=["flip-flop", "mante"], g=[0.0, 0.9, 1.8], size="small", seed=range(4)),
        "paper": Grid(task=TASKS, g=[0.0, 0.9, 1.8], size="paper", seed=range(5)),
    }
    vectorized = ("seed",)
    expected = {"quick": 60.0, "paper": 1900.0}
    may_be_nan = (
        *("epochs", "test_loss", "eigenvalues", "change_eigenvalues"),
        *("singular_values", "change_singular_values"),
    )

    def compute(self, task, g, size, seed):
        found = measured(task, g, HIDDEN[size][task], tuple(seed))
        widest = max(HIDDEN[size].values())

        def parts(values):
            room = np.full((len(seed), widest, 2), np.nan)
            room[:, : values.shape[1], 0], room[:, : values.shape[1], 1] = values.real, values.imag
            return room

        return xr.Dataset(
            {
                "epochs": ("seed", found["epochs"]),
                "test_loss": ("seed", found["test_loss"]),
                "change_singular_values": (("seed", "mode"), found["change_singular_values"]),
                "singular_values": (("seed", "mode"), found["singular_values"]),
                "change_eigenvalues": (("seed", "index", "part"), parts(found["change_eigenvalues"])),
                "eigenvalues": (("seed", "index", "part"), parts(found["eigenvalues"])),
            },
            coords={"seed": list(seed), "mode": np.arange(1, MODES + 1), "part": ["real", "imaginary"]},
        )

    def draw(self, data):
        data = data.isel(size=0)
        tasks = [str(task) for task in data.task.values]
        fig, axes = style.figure(5, len(tasks), width=2.8 * len(tasks), height=10.5)
        angle = np.linspace(0, 2 * np.pi, 200)
        for column, task in enumerate(tasks):
            one = data.sel(task=task).isel(seed=0)
            axes[0, column].set_title(TITLES[task])
            for row, name in enumerate(("change_singular_values", "singular_values")):
                for g, color in COLORS.items():
                    axes[row, column].plot(
                        one.mode, one[name].sel(g=g), ".-", ms=3, color=color, label=f"g = {g}"
                    )
                axes[row, column].set(xlabel="index", ylim=(0, None))
            for row, g in enumerate(COLORS, start=2):
                panel = axes[row, column]
                for name, color, mark in (
                    ("eigenvalues", style.BLUE, "."),
                    ("change_eigenvalues", style.VERMILION, "x"),
                ):
                    values = one[name].sel(g=g)
                    label = "$W$" if name == "eigenvalues" else "$\\Delta W$"
                    panel.plot(values[:, 0], values[:, 1], mark, ms=4, color=color, label=label)
                if g > 0:
                    panel.plot(g * np.cos(angle), g * np.sin(angle), color=style.GREY, lw=0.8)
                panel.set(xlabel="real part", title=f"g = {g}")
                panel.set_aspect("equal", adjustable="datalim")
        axes[0, 0].set_ylabel("singular values of $\\Delta W$")
        axes[1, 0].set_ylabel("singular values of $W$")
        for row in range(2, 5):
            axes[row, 0].set_ylabel("imaginary part")
        axes[0, 0].legend()
        axes[2, 0].legend()
        return fig

    def claims(self, data) -> Iterator[Claim]:
        is_paper = str(data["size"].values[0]) == "paper"
        data = data.isel(size=0)
        real, imaginary = data.eigenvalues.sel(part="real"), data.eigenvalues.sel(part="imaginary")
        flip = {"task": "flip-flop", "g": 0.0}
        count = (real.sel(flip) > 0.5).sum("index")
        yield Claim(
            "flip-flop, g = 0: exactly two eigenvalues have a real part above 0.5",
            measured=float(abs(count - 2).max()),
            at_most=0,
            source="Fig. S2(d)",
            note="largest distance of their number from two",
        )
        leading = real.sel(flip).isel(index=slice(0, 2))
        for name, value in (("smaller", leading.min()), ("larger", leading.max())):
            yield Claim(
                f"flip-flop, g = 0: the {name} of the two is above one, in every network",
                measured=float(value),
                at_least=1.1,
                at_most=1.25,
                source="Fig. S2(d)",
            )
        if "mante" in data.task.values:
            mante = real.sel(task="mante", g=0.0).where(is_converged(data).sel(task="mante", g=0.0))
            yield Claim(
                "Mante, g = 0: one real eigenvalue leads",
                measured=float(mante.isel(index=0).median()),
                at_least=1.55,
                at_most=1.85,
                source="Fig. S2(e)",
                note="median over networks; 1.6 to 1.8, to two digits",
            )
            yield Claim(
                "Mante, g = 0: it is real, in every network",
                measured=float(abs(imaginary.sel(task="mante", g=0.0).isel(index=0)).max()),
                at_most=1e-6,
                source="Fig. S2(e)",
                note="largest imaginary part",
            )
            yield Claim(
                "Mante, g = 0: the others have smaller real parts, in every network",
                measured=float(mante.isel(index=1).max()),
                at_most=0.7,
                source="Fig. S2(e)",
            )
        if "romo" in data.task.values:
            romo = data.sel(task="romo", g=[0.0, 0.9])
            is_pair = (romo.eigenvalues.sel(part="real") > 0.5) & (
                abs(romo.eigenvalues.sel(part="imaginary")) > 1e-3
            )
            yield Claim(
                "Romo: complex pairs appear at g = 0 and 0.9, in every network",
                measured=float(is_pair.sum("index").min()),
                at_least=2,
                source="Fig. S2(f, i)",
                note="smallest number of complex eigenvalues with a real part above 0.5",
            )
        if is_paper:
            # In small networks close eigenvalues pair up, and more of the bulk lies outside the circle.
            yield Claim(
                "flip-flop, g = 0: both leading eigenvalues are real",
                measured=float(abs(imaginary.sel(flip).isel(index=slice(0, 2))).max()),
                at_most=1e-6,
                source="Fig. S2(d)",
                note="largest imaginary part",
            )
            strong = data.sel(g=[0.9, 1.8]).eigenvalues
            size = np.hypot(strong.sel(part="real"), strong.sel(part="imaginary"))
            inside = (size <= size.g).sum("index") / np.isfinite(size).sum("index")
            yield Claim(
                "most eigenvalues of W still remain within the circle of radius g, in every network",
                measured=float(inside.min()),
                at_least=0.9,
                source="Fig. S2(g-l)",
                note="smallest share; a random W_0 of this size already has some 3 % outside",
            )
