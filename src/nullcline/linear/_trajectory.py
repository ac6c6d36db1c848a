"""The course of a two-layer network in time, as factors from which everything else is formed on demand."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._checks import is_concrete, require_integer
from .._precision import full_precision
from ._network import Network

STATUS = {
    0: "ok",
    1: "the weights are not balanced (exact solution not defined)",
    2: "the inputs are not isotropic (exact solution not defined)",
    3: "the weights diverged",
    4: "the solver took too many steps",
    5: "the solver failed",
    6: "times are negative or not sorted, or `tau` is not positive",
}
OK, UNBALANCED, NOT_WHITE, DIVERGED, TOO_MANY_STEPS, FAILED, BAD_TIMES = range(7)


class Trajectory(eqx.Module):
    r"""States of a network at ``times``, held as factors.

    With :math:`Q = [W_1^\top; W_2]`, the state :math:`QQ^\top` at each time is kept as
    :math:`W_1^\top \cong v\,g_1` and :math:`W_2 \cong u\,g_2`, up to one common rotation of the hidden
    units. ``u`` and ``v`` are None (the identity) or the basis of the task; :math:`u u^\top = I`,
    :math:`v v^\top = I` and the columns of ``g1``, ``g2`` lie in the range of :math:`v^\top`,
    :math:`u^\top`, so norms and traces may be taken of the factors alone. The matrices of size (time, n, n)
    are formed when they are read. A batch of trajectories (``vmap``) has its axes in front of each array.

    For inputs that span only a subspace, ``exact_flow`` describes :math:`W_1` on that subspace; its component
    outside never moves and no input sees it.

    A network of more hidden units than inputs and outputs together needs no more columns than these; what the
    rotation leaves are units with weights zero. ``hidden`` counts them (None: there are none), and
    ``network_at`` has them again.

    ``status`` is 0 for a trajectory to be trusted; ``STATUS`` names the other values. States of
    ``exact_flow`` and ``integrate_flow`` that cannot be trusted are NaN; ``gradient_descent`` that diverged
    shows how.
    """

    times: Float[Array, " time"]
    g1: Float[Array, "time inputs hidden"]
    g2: Float[Array, "time outputs hidden"]
    v: Float[Array, "n_in inputs"] | None
    u: Float[Array, "n_out outputs"] | None
    status: Int[Array, ""]
    hidden: int | None = eqx.field(static=True, default=None)

    def __repr__(self) -> str:
        """Sizes, times and whether to trust it, where values can be seen."""
        if not isinstance(self.status, jax.Array) or not is_concrete(self.times, self.status):
            return super().__repr__()
        *batch, count, _, _ = self.g1.shape
        n_in, n_out = ((g if b is None else b).shape[-2] for g, b in ((self.g1, self.v), (self.g2, self.u)))
        many = "".join(f"{size} × " for size in batch)
        first, last = float(jnp.min(self.times)), float(jnp.max(self.times))
        codes = sorted(set(np.asarray(self.status).ravel().tolist()))
        status = "; ".join(STATUS[code] for code in codes)
        times = f"{count} times from {first:g} to {last:g}"
        return f"Trajectory({many}{n_in}-{self.n_hidden}-{n_out}, {times}, {self.g1.dtype}, status: {status})"

    @property
    def n_hidden(self) -> int:
        """Number of hidden units."""
        return self.g1.shape[-1] if self.hidden is None else self.hidden

    @property
    def is_ok(self) -> Array:
        """Whether the trajectory can be trusted."""
        return self.status == OK

    @property
    def w1t(self) -> Float[Array, "*batch time n_in hidden"]:
        r"""A factor of :math:`W_1^\top` at each time, rotated like ``w2``."""
        return _rotate(self.v, self.g1)

    @property
    def w2(self) -> Float[Array, "*batch time n_out hidden"]:
        r"""A factor of :math:`W_2` at each time, rotated like ``w1t``."""
        return _rotate(self.u, self.g2)

    @property
    def qqt(self) -> Float[Array, "*batch time n n"]:
        r"""The state :math:`QQ^\top = [[W_1^\top W_1, (W_2W_1)^\top], [W_2W_1, W_2W_2^\top]]`."""
        return _state(self.v, self.g1, self.u, self.g2)

    @property
    def function(self) -> Float[Array, "*batch time n_out n_in"]:
        """The linear map :math:`W_2 W_1` at each time."""
        return _function(self.v, self.g1, self.u, self.g2)

    @property
    def input_gram(self) -> Float[Array, "*batch time n_in n_in"]:
        r"""Input representation :math:`C = W_1^\top W_1` at each time."""
        return _gram(self.v, self.g1)

    @property
    def output_gram(self) -> Float[Array, "*batch time n_out n_out"]:
        r"""Output representation :math:`B = W_2 W_2^\top` at each time."""
        return _gram(self.u, self.g2)

    def network_at(self, index: int = -1) -> Network:
        """A network with the state at ``times[index]`` (hidden units rotated), to train on from there."""
        if self.g1.ndim != 3:
            raise ValueError(
                f"This trajectory holds a batch, of shape {self.g1.shape[:-3]}: use "
                "`jax.vmap(lambda trajectory: trajectory.network_at(index))(trajectories)`."
            )
        count = self.g1.shape[0]
        if is_concrete(index):
            index = np.asarray(index).item() if np.ndim(index) == 0 else index
            index = require_integer("index", index, -count, count - 1, f"one of the {count} times")
        more = ((0, 0), (0, self.n_hidden - self.g1.shape[-1]))
        w1t, w2 = (jnp.pad(w[index], more) for w in (self.w1t, self.w2))
        return Network(w1t.T, w2)


# Compiled, so that reading a matrix is one call.
@jax.jit
@full_precision
def _rotate(basis: Array | None, factor: Array) -> Array:
    return factor if basis is None else basis[..., None, :, :] @ factor


@jax.jit
@full_precision
def _gram(basis: Array | None, factor: Array) -> Array:
    rotated = _rotate(basis, factor)
    return rotated @ jnp.swapaxes(rotated, -1, -2)


@jax.jit
@full_precision
def _function(v: Array | None, g1: Array, u: Array | None, g2: Array) -> Array:
    return _rotate(u, g2) @ jnp.swapaxes(_rotate(v, g1), -1, -2)


@jax.jit
@full_precision
def _state(v: Array | None, g1: Array, u: Array | None, g2: Array) -> Array:
    return _gram(None, jnp.concatenate([_rotate(v, g1), _rotate(u, g2)], axis=-2))
