"""Gradient descent with finite steps on the fixed point of a linear RNN, and when it can be trusted."""

import functools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ..._checks import is_concrete, require_size
from ._checks import Scalar, checked_target
from ._flow import reduced_flow
from ._learning import stable_step
from ._problem import Reduced


class DescentStatus(eqx.Module):
    """What to know of a descent before using it; every flag is False when all is well.

    Attributes
    ----------
    diverged
        A value that is not finite was met; ``diverged_at`` is its step, -1 if none.
    lost_stability
        A step carried an eigenvalue of the weights past 1: a simulated network would explode there, while the
        fixed point still exists. ``unstable_at`` is the first such step, -1 if none.
    unstable_step
        The learning rate exceeds :func:`critical_step`: the end of training oscillates or fails.
    krylov_truncated, single_precision
        As in :class:`FlowStatus`.
    """

    diverged: Bool[Array, "*batch"]
    diverged_at: Int[Array, "*batch"]
    lost_stability: Bool[Array, "*batch"]
    unstable_at: Int[Array, "*batch"]
    unstable_step: Bool[Array, "*batch"]
    krylov_truncated: Bool[Array, "*batch"]
    single_precision: bool = eqx.field(static=True)

    @property
    def flags(self) -> tuple[str, ...]:
        """Names of the flags that are set (anywhere, if this is a batch)."""
        names = ("diverged", "lost_stability", "unstable_step", "krylov_truncated", "single_precision")
        return tuple(name for name in names if np.any(getattr(self, name)))


class Descent(eqx.Module):
    """Gradient descent of one network; entry k is before step k, the last one after all steps.

    The change is ``left @ core @ right.T``. After a divergence ``readout`` is NaN and ``core`` keeps its last
    finite value.
    """

    taus: Float[Array, " steps"]
    readout: Float[Array, " steps"]
    core: Float[Array, "steps rank rank"]
    left: Float[Array, "n rank"]
    right: Float[Array, "n rank"]
    status: DescentStatus

    @property
    def change(self) -> Float[Array, "steps n n"]:
        """The weight change, N × N before each step; formed when asked for."""
        return self.left @ self.core @ self.right.T


@functools.partial(jax.jit, static_argnames="steps")
def _descend(problem: Reduced, target: Array, step: Array, steps: int) -> tuple[Array, Array, Array]:
    """Readouts, changes and orientation (the sign of det(I - W) / det(I - W_0)) before each step."""

    def one(carry: tuple[Array, Array], _: None):
        change, is_alive = carry
        p, q = problem.vectors(change)
        z = problem.initial_readout + problem.p0 @ (change @ q)
        new = change + step * (target - z) * jnp.outer(p, q)
        seen = jnp.where(is_alive & jnp.isfinite(z), z, jnp.nan)
        is_alive = is_alive & jnp.all(jnp.isfinite(new))
        return (jnp.where(is_alive, new, change), is_alive), (seen, change)

    _, (readout, core) = jax.lax.scan(one, (problem.no_change(), jnp.ones((), bool)), None, length=steps + 1)
    identity = jnp.eye(problem.b.shape[0], dtype=problem.b.dtype)
    sign = jax.vmap(lambda change: jnp.linalg.slogdet(identity - problem.b @ change)[0])(core)
    return readout, core, sign


def _first(flags: Bool[Array, " steps"]) -> Int[Array, ""]:
    """Index of the first True, -1 if there is none."""
    return jnp.where(jnp.any(flags), jnp.argmax(flags), -1)


def descent(
    w0: Float[Array, "n n"],
    m: Float[Array, " n"],
    w: Float[Array, " n"],
    target: Scalar,
    step: float | Float[Array, ""],
    steps: int,
    *,
    rank: int = 12,
) -> Descent:
    r"""Plain gradient descent on the weights of a linear RNN at its fixed point.

    The map :math:`W \leftarrow W + \eta(\hat z - z)\,G^Tw\,m^TG^T`, in the basis of :func:`exact_flow`. It
    reproduces the simulation of the simple task of schuessler2020 for trials that are long enough
    (:func:`nullcline.recurrent.is_short_trial`), in milliseconds.

    Parameters
    ----------
    w0, m, w, target
        The network and its target, as in :func:`exact_flow`.
    step
        Learning rate :math:`\eta`, positive.
    steps
        Number of steps, at least 1.
    rank
        Half of the size of the basis, as in :func:`exact_flow`.
    """
    if is_concrete(step) and not 0 < float(step) < math.inf:
        raise ValueError(f"`step` must be positive and finite, got {step}.")
    require_size("steps", steps)
    target = checked_target(w0, m, w, target)
    step = jnp.asarray(step, target.dtype)
    solution, left, right, flow = reduced_flow(w0, m, w, target, rank)
    problem = solution.problem
    assert isinstance(problem, Reduced)
    readout, core, sign = _descend(problem, target, step, steps)
    is_lost, is_unstable = jnp.isnan(readout), sign < 0
    status = DescentStatus(
        jnp.any(is_lost),
        _first(is_lost),
        jnp.any(is_unstable),
        _first(is_unstable),
        step > stable_step(solution),
        flow.krylov_truncated,
        flow.single_precision,
    )
    return Descent(step * jnp.arange(steps + 1, dtype=target.dtype), readout, core, left, right, status)
