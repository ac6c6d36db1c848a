"""Small studies, in a file of their own as a user would write them; tests hand it to the command.

Every computation leaves a file in the folder that TOY_MARKS names, holding the process that did it, so that
tests can count computations. A square waits until the file that TOY_GATE names is there, and the square of
TOY_STOP waits for ever: tests stop runs at a known place without a clock.
"""

import os
import time
import uuid
from pathlib import Path

import numpy as np

from nullcline.engine import Claim, Grid, Study


def mark(name):
    folder = os.environ.get("TOY_MARKS")
    if folder:
        (Path(folder) / f"{name}.{uuid.uuid4().hex}").write_text(str(os.getpid()))


def plot(data, name):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3, 2))
    axes = figure.subplots()
    axes.plot(np.ravel(data[name].values))
    return figure


class Squares(Study):
    """Squares of whole numbers.

    The second paragraph is the caption.
    """

    source = "toy/squares"
    presets = {"quick": Grid(n=range(12)), "paper": Grid(n=range(100))}
    expected = {"quick": 1.0}

    def compute(self, n):
        mark(f"squares-{n}")
        gate = os.environ.get("TOY_GATE")
        while (gate and not Path(gate).exists()) or os.environ.get("TOY_STOP") == str(n):
            time.sleep(0.01)
        return {"square": n * n, "root": np.sqrt(n)}

    def draw(self, data):
        return plot(data, "square")

    def claims(self, data):
        yield Claim("the largest is last", measured=data.square[-1], at_least=121, source="toy, eq. 1")
        yield Claim(
            "squares are odd",
            measured=(data.square % 2).mean(),
            at_most=0.5,
            erratum="half of them are even",
            note="counted",
        )


class Exponentials(Study):
    """A compiled program with a vectorized axis."""

    source = "toy/exponentials"
    presets = {"quick": Grid(size=[3, 40, 200], seed=range(4))}
    vectorized = ("seed",)
    expected = {"quick": 5.0}

    def compute(self, size, seed):
        import jax
        import jax.numpy as jnp
        import jax.random as jr

        mark(f"exponentials-{size}")

        @jax.jit
        @jax.vmap
        def norm(seed):
            matrix = jr.normal(jr.key(seed), (size, size))
            values = jnp.linalg.eigvalsh(matrix @ matrix.T)
            return jnp.sum(jnp.exp(-values)), jnp.linalg.norm(matrix @ matrix)

        trace, length = norm(jnp.asarray(seed))
        return {"trace": trace, "length": length}

    def draw(self, data):
        return plot(data, "trace")

    def claims(self, data):
        yield Claim("traces are positive", measured=data.trace.min(), at_least=0)


class Accidents(Study):
    """Points that raise, that are not a number, that hang, and good ones."""

    source = "toy/accidents"
    presets = {
        "quick": Grid(kind=["good", "raises", "nan", "fine"]),
        "hangs": Grid(kind=["good", "hangs", "fine"]),
    }

    def compute(self, kind):
        mark(f"accidents-{kind}")
        if kind == "raises" and not os.environ.get("TOY_REPAIRED"):
            raise ZeroDivisionError("one over nothing")
        while kind == "hangs":
            time.sleep(0.1)
        return {"value": np.nan if kind == "nan" and not os.environ.get("TOY_REPAIRED") else 1.0}

    def draw(self, data):
        return plot(data, "value")

    def claims(self, data):
        yield Claim("all are one", measured=data.value.mean(), at_least=1, at_most=1)
