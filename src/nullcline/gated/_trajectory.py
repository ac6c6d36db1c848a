"""Gradient flow recorded at given times, by Diffrax."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import optimistix
from jaxtyping import Array, Bool, Float, Int, PyTree

from ._rkc import Field


class Trajectory(eqx.Module):
    """Flat states at the asked times (NaN where they were not reached), the last state, and how it went."""

    states: Float[Array, "runs times size"]
    end: Float[Array, "runs size"]
    time: Float[Array, " runs"]
    evaluations: Int[Array, " runs"]
    is_complete: Bool[Array, " runs"]


@eqx.filter_jit
def follow(
    field: Field,
    y0: Float[Array, "runs size"],
    args: PyTree,
    times: Float[Array, " times"],
    *,
    atol: Float[Array, " runs"],
    rtol: float,
    max_evaluations: int,
    is_stiff: bool,
) -> Trajectory:
    """Integrate with Tsit5, or the implicit Kvaerno5 for small stiff systems, stepping onto ``times``."""
    # Full Newton: the default chord iteration rejects every other step in the valley of a stuck run.
    newton = diffrax.with_stepsize_controller_tols(optimistix.Newton)()
    solver = diffrax.Kvaerno5(root_finder=newton) if is_stiff else diffrax.Tsit5()
    cost = 6
    max_steps = max(1, max_evaluations // cost)

    def one(y: Float[Array, " size"], mine: PyTree, atol: Float[Array, ""]):
        def velocity(t, y, args):
            return -field(y[None], jax.tree.map(lambda a: a[None], args))[1][0]

        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(velocity),
            solver,
            t0=jnp.zeros((), y.dtype),
            t1=times[-1],
            dt0=None,
            y0=y,
            args=mine,
            saveat=diffrax.SaveAt(subs=[diffrax.SubSaveAt(ts=times), diffrax.SubSaveAt(t1=True)]),
            # Landing on the times: interpolated values would lose digits.
            stepsize_controller=diffrax.ClipStepSizeController(
                diffrax.PIDController(rtol=rtol, atol=atol), step_ts=times
            ),
            max_steps=max_steps,
            throw=False,
        )
        assert solution.ys is not None and solution.ts is not None
        states, end = solution.ys
        is_complete = solution.result == diffrax.RESULTS.successful
        states = jnp.where(jnp.isfinite(states), states, jnp.nan)
        # A failed solve may report its last, bad trial: fall back on the last time that was reached.
        return states, end[0], solution.ts[1][0], solution.stats["num_steps"] * cost, is_complete

    states, end, time, evaluations, is_complete = jax.vmap(one)(y0, args, atol)
    return Trajectory(states, end, time, evaluations.astype(jnp.int32), is_complete)
