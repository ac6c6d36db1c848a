"""Figure 3.1: what randomly drawn weights look like through their balance."""

from collections.abc import Iterator

import numpy as np

from ...engine import Claim, Grid, Study
from .._lazy import jr
from .._style import DIVERGING, figure
from ._common import linear, signed

SCHEMES = {"lecun": "LeCun", "he": "He", "scaled": "Scaled (α = 1, 2)", "glorot": "Glorot"}
INPUTS, OUTPUTS = 40, 80


class RandomWeights(Study):
    """Balance matrix of random weights under four initialization schemes."""

    source = "anguita2024/fig3.1"
    presets = {
        "quick": Grid(scheme=list(SCHEMES), hidden=[120, 200], seed=range(10)),
        "paper": Grid(scheme=list(SCHEMES), hidden=[120, 200], seed=range(100)),
    }
    expected = {"quick": 5, "paper": 7}
    vectorized = ("seed",)

    def compute(self, scheme, hidden, seed):
        options = {"scheme": scheme, "alphas": (1.0, 2.0) if scheme == "scaled" else (1.0, 1.0)}
        theory = linear.expected_balance(INPUTS, hidden, OUTPUTS, **options)

        # Not compiled as a whole: the schemes share every operation.
        networks = [linear.gaussian(INPUTS, hidden, OUTPUTS, **options, key=_key(s)) for s in seed]
        d = np.stack([linear.balance(network) for network in networks])
        diagonal = np.diagonal(d, axis1=1, axis2=2)
        fitted = diagonal.mean(1)
        apart = np.linalg.norm(d - fitted[:, None, None] * np.eye(hidden), axis=(1, 2))
        return {
            "fitted": fitted,
            "deviation": apart / np.linalg.norm(d, axis=(1, 2)),
            "on_diagonal": np.mean((diagonal - theory.lam) ** 2, axis=1),
            "off_diagonal": (np.sum(d**2, (1, 2)) - np.sum(diagonal**2, 1)) / (hidden * (hidden - 1)),
            "lam": ((), theory.lam),
            "variance": ((), theory.variance),
            # The first draw is the one that is shown.
            "balance": (("unit", "other"), d[0]),
        }

    def draw(self, data):
        fig, axes = figure(data.hidden.size, 4, width=8.6, height=2.3 * data.hidden.size)
        for row, hidden in enumerate(data.hidden.values):
            for ax, scheme in zip(axes[row], data.scheme.values, strict=False):
                one = data.sel(scheme=scheme, hidden=hidden)
                matrix = one.balance.values[: int(hidden), : int(hidden)]
                limit = np.abs(matrix).max()
                image = ax.imshow(matrix, cmap=DIVERGING, vmin=-limit, vmax=limit, interpolation="nearest")
                ax.set(xticks=[], yticks=[])
                ax.spines[:].set_visible(False)
                fitted = float(one.fitted.isel(seed=0))
                numbers = f"λ = {signed(float(one.lam), '.2f')}, fitted {signed(fitted, '.2f')}"
                ax.set_title(f"{SCHEMES[str(scheme)]}\n{numbers}")
                fig.colorbar(image, ax=ax, shrink=0.75, pad=0.02)
            axes[row, 0].set_ylabel(f"$W_2^\\top W_2 - W_1W_1^\\top$\n({INPUTS}, {hidden}, {OUTPUTS})")
        return fig

    def claims(self, data) -> Iterator[Claim]:
        spread = np.sqrt(2 * data.variance / data.hidden)
        yield Claim(
            "Under each scheme the balance has the mean λ of Table 3.1: the fitted λ* = tr D / n is "
            "within four "
            "standard deviations √(2v/n) of it",
            measured=(np.abs(data.fitted - data.lam) / spread).max(),
            at_most=4,
            source="Theorem 3.1.1, Table 3.1",
            note="Largest of all draws, in standard deviations.",
        )
        yield Claim(
            "Off the diagonal the balance has variance v",
            measured=(data.off_diagonal / data.variance).mean(),
            at_least=0.95,
            at_most=1.05,
            source="Theorem 3.1.1",
        )
        yield Claim(
            "On the diagonal the balance has variance 4v",
            measured=(data.on_diagonal / data.variance).mean(),
            at_least=1.8,
            at_most=2.2,
            source="Theorem 3.1.1",
            erratum="The variance on the diagonal is 2v: 3n + n² − n − n² = 2n, not 4n.",
            note="In units of v.",
        )
        yield Claim(
            "The balance of random weights resembles a scaled identity",
            measured=data.deviation.min(),
            at_least=0.9,
            at_most=1,
            source="Figure 3.1",
            erratum="Single entries concentrate, the matrix does not: ‖D − λ*I‖ / ‖D‖ is 0.91 to 0.99, "
            "at any width.",
            note=f"Smallest of all draws; the means are {_range(data.deviation.mean('seed'))}.",
        )
        yield Claim(
            "LeCun and He weights have a positive diagonal, as the panels show",
            measured=data.fitted.sel(scheme=["lecun", "he"]).max(),
            at_most=0,
            source="Figure 3.1",
            erratum="Table 3.1 gives −1/3 and −2/3 for (40, 120, 80), −0.6 and −1.2 for (40, 200, 80).",
            note="Largest λ* of all draws.",
        )


def _key(seed):
    return jr.fold_in(jr.key(31), seed)


def _range(values) -> str:
    return f"{float(values.min()):.3f} to {float(values.max()):.3f}"
