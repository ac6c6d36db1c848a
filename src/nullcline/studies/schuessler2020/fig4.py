"""Figure 4: how the strength of the initial weights speeds up learning in a linear network."""

import functools
from collections.abc import Iterator

import numpy as np

from ...engine import Claim, Grid, Study
from .._lazy import jax, jnp, jr
from .._style import BLUE, GREY, VERMILION, figure, letter
from ._linear import ETA0, network, simulate, theory

QUANTITIES = ("time", "change", "gradient", "shuffled")
TITLES = (
    "learning time $\\tau^*$",
    "change $\\|\\Delta W\\|$",
    "average gradient",
    "loss after shuffling $L/L_0$",
)


def shuffled_loss(w0, m, w, change, target, key):
    """Loss over that of a silent network, once the entries of the initial weights are permuted."""
    after = jr.permutation(key, w0.ravel()).reshape(w0.shape) + change
    return (1 - w @ jnp.linalg.solve(jnp.eye(m.size) - after, m) / target) ** 2


@functools.cache
def own_flow():
    """The four quantities from the exact flow of a network; one compiled program for all points."""

    @jax.jit
    def quantities(w0, m, w, target, key):
        # A basis of twice 8 is good to 1e-9 here, far below the scatter of the networks, in half the time.
        flow = theory.learning(w0, m, w, target, relative_to="target", rank=8)
        shuffled = shuffled_loss(w0, m, w, flow.change, target, key)
        return jnp.stack([flow.time, flow.change_norm, flow.gradient, shuffled]), flow.status.incomplete

    return quantities


def simulated(w0, m, w, target, rate, key):
    """The four quantities from a simulation through time; the time is NaN if 5 % is never met."""
    changes, losses, _ = simulate(w0, m, w, target, rate, every=1)
    below = losses < 0.05 * target**2 / 2
    if not below.any():
        return np.full(4, np.nan)
    epoch = int(np.argmax(below))
    steps = np.linalg.norm(np.diff(changes[: epoch + 1], axis=0), axis=(1, 2))
    shuffled = shuffled_loss(w0, m, w, changes[-1], target, key)
    return np.array([rate * epoch, np.linalg.norm(changes[-1]), steps.mean() / rate, float(shuffled)])


def limit(target, g):
    """The four quantities at infinite width, and the stable learning rate."""
    time = theory.learning_time(target=target, g=g)
    flow = theory.infinite_width_flow(target, g, jnp.stack([time, jnp.inf]))
    shuffled = (1 - flow.shuffled_readout[1] / target) ** 2
    norm = jnp.linalg.norm(flow.singular_values[1])
    return jnp.stack([time, norm, flow.path[0] / time, shuffled]), theory.critical_step(target=target, g=g)


class InitialStrength(Study):
    """Learning time, change, gradient and shuffled loss against the strength of the initial weights."""

    source = "schuessler2020/fig4"
    presets = {
        "quick": Grid(target=[0.5, 2.0], g=np.arange(10) / 10, neurons=256, seed=range(20)),
        "paper": Grid(target=[0.5, 2.0], g=np.arange(10) / 10, neurons=1024, seed=range(30)),
    }
    vectorized = ("seed",)
    expected = {"quick": 45.0, "paper": 900.0}
    may_be_nan = ("own", "simulation")

    def compute(self, target, g, neurons, seed):
        flow = own_flow()
        rows, failed = [], 0
        for one in seed:
            row, is_incomplete = flow(*network(neurons, g, one), target, jr.key(one + 1000))
            failed += int(is_incomplete)
            rows.append(np.where(is_incomplete, np.nan, row))
        exact, step = limit(target, g)
        order = theory.first_order(target, g)
        rate = ETA0[target] * (1 - g**2) ** 2
        first = [order.learning_time, order.change_norm, order.gradient_norm, order.shuffled_loss]
        # One network also through time, halfway: the flows are its limit of small steps.
        run = np.full(4, np.nan)
        if g == 0.6:
            run = simulated(*network(neurons, g, seed[0]), target, rate, jr.key(seed[0] + 1000))
        return {
            "quantity": ("quantity", list(QUANTITIES)),
            "own": (("seed", "quantity"), np.stack(rows)),
            "limit": ("quantity", exact),
            "first_order": ("quantity", np.array([float(value) for value in first])),
            "simulation": ("quantity", run),
            "rate_over_critical": ((), rate / step),
            "failed": ((), failed),
        }

    def draw(self, data):
        fig, axes = figure(2, 2, width=6.4, height=4.8, sharex=True)
        data = data.isel(neurons=0)
        for ax, quantity, title, name in zip(axes.ravel(), QUANTITIES, TITLES, "abcd", strict=True):
            for target, color in zip(data.target.values, (BLUE, VERMILION), strict=False):
                one = data.sel(target=target, quantity=quantity)
                unit = 1.0 if quantity == "shuffled" else float(one.own.sel(g=0.0).mean())
                exact_unit = 1.0 if quantity == "shuffled" else float(one.limit.sel(g=0.0))
                mean, spread = one.own.mean("seed") / unit, one.own.std("seed") / unit
                ax.plot(data.g, mean, color=color, lw=2, label=f"networks, target {target:g}")
                ax.fill_between(data.g, mean - spread, mean + spread, color=color, alpha=0.15, lw=0)
                ax.plot(data.g, one.limit / exact_unit, color=color, ls=":", label="exact, $N = \\infty$")
                ax.plot(data.g, one.simulation / unit, "o", color=color, ms=5, mfc="w", label="simulation")
            first = data.first_order.sel(quantity=quantity).isel(target=0)
            unit = 1.0 if quantity == "shuffled" else float(first.sel(g=0.0))
            ax.plot(data.g, first / unit, color=GREY, ls="--", label="first order")
            ax.set_title(title + ("" if quantity == "shuffled" else " relative to $g = 0$"), fontsize=9)
            letter(ax, name)
        axes[1, 0].legend(loc="upper left", fontsize=7)
        for ax in axes[1]:
            ax.set_xlabel("strength $g$ of the initial weights")
        return fig

    def claims(self, data) -> Iterator[Claim]:
        data = data.isel(neurons=0)
        mean = data.own.mean("seed")
        for quantity, power, bound, sentence in (
            ("time", 2, 0.12, "Initial weights accelerate learning by the factor (1 − g²)²"),
            ("change", 1, 0.16, "The norm of the final change decreases by the factor 1 − g²"),
        ):
            one = mean.sel(quantity=quantity)
            gap = np.abs(one / one.sel(g=0.0) - (1 - data.g**2) ** power)
            yield Claim(
                sentence,
                measured=gap.max(),
                at_most=bound,
                source="Fig. 4(a,b)",
                note="Largest distance of the normalized mean over networks from the factor.",
            )
        excess = (data.limit - data.first_order).sel(quantity="shuffled")
        yield Claim(
            "The first-order loss after shuffling is a lower bound",
            measured=excess.min(),
            at_least=-1e-9,
            source="Fig. 4(d)",
            note="Smallest distance of the exact loss at infinite width from the first order.",
        )
        yield Claim(
            "For the larger target it is too small by up to 0.4",
            measured=excess.sel(target=2.0).max(),
            at_least=0.35,
            at_most=0.45,
            source="Fig. 4(d)",
            note="Largest distance of the exact loss at infinite width; 0.4 to one digit.",
        )
        if data.seed.size >= 20:
            low = data.sel(g=slice(None, 0.71))
            count = low.own.notnull().sum("seed")
            error = low.own.std("seed", ddof=1) / np.sqrt(count)
            # Without initial weights there is nothing to shuffle: both sides are zero to rounding.
            score = (np.abs(low.own.mean("seed") - low.limit) / error).where(error > 1e-9)
            yield Claim(
                "The exact curves of infinite width lie within three standard errors of the mean for g ≤ 0.7",
                measured=score.max(),
                at_most=3.0,
                source="Fig. 4",
                note=f"Largest over the four quantities, both targets and g; {data.seed.size} networks each.",
            )
        if int(data.neurons) == 256:
            strong = data.sel(quantity="time", g=slice(0.79, None))
            yield Claim(
                "For g ≥ 0.8 networks of 256 neurons still take 10 to 40 % longer than infinite ones",
                measured=float((strong.own.mean("seed") / strong.limit - 1).mean()),
                at_least=0.1,
                at_most=0.4,
                source="Fig. 4(a)",
                note="Mean excess of the learning time over both targets and g of 0.8 and 0.9.",
            )
        yield Claim(
            "For target 2 and g ≥ 0.8 the document's learning rate exceeds the critical one",
            measured=data.rate_over_critical.sel(target=2.0, g=slice(0.79, None)).min(),
            at_least=1.0,
            source="Fig. 4",
            note="Learning rate over the critical one at infinite width: the end of training oscillates.",
        )
