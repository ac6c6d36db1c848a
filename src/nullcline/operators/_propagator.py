"""The linearised flow propagator P of hazelden2025 and its relatives, one linearised step at a time."""

from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from ._operator import AbstractOperator, Adjoint, Product, Scaled, Space, Sum

if TYPE_CHECKING:
    from ._flow import Flow


class Propagator(AbstractOperator):
    r"""The propagator P: forcings of the step to changes of the states, hazelden2025 (38); or its inverse.

    :math:`p_t = J_t p_{t-1} + q_t`, :math:`p_{-1} = 0`; the adjoint runs backwards,
    :math:`a_t = q_t + J_{t+1}^T a_{t+1}`. P never mixes trials, and its determinant is one. The inverse,
    :math:`p_t - J_t p_{t-1}`, is block bidiagonal: one linearised step for all trials and times at once.
    """

    flow: "Flow"
    is_inverse: bool = eqx.field(static=True, default=False)

    @property
    def in_space(self) -> Space:
        """Trajectories."""
        return self.flow.space

    @property
    def out_space(self) -> Space:
        """Trajectories."""
        return self.flow.space

    @property
    def is_psd(self) -> bool:
        """P is not self-adjoint."""
        return False

    @property
    def inverse(self) -> "Propagator":
        """The exact inverse."""
        return Propagator(self.flow, not self.is_inverse)

    def mv(self, q: Array) -> Array:
        """Run the linearised flow forward; or :math:`q_t - J_t q_{t-1}`."""
        if not self.is_inverse:
            return self.flow.tangent_flow(q)
        before = jnp.concatenate([jnp.zeros_like(q[:, :1]), q[:, :-1]], axis=1)
        return q - jax.jvp(self.flow.rows, (self.flow.states_before,), (before,))[1]

    def rmv(self, r: Array) -> Array:
        """Run the adjoint flow backward; or :math:`r_t - J_{t+1}^T r_{t+1}`."""
        if not self.is_inverse:
            return self.flow.adjoint_flow(r)
        pulled = jax.vjp(self.flow.rows, self.flow.states_before)[1](r)[0]
        return r - jnp.concatenate([pulled[:, 1:], jnp.zeros_like(r[:, :1])], axis=1)


class InitialTangent(AbstractOperator):
    r"""Changes of the initial state to changes of the states, :math:`(P_0 v)_{bt} = \Phi_b(t, -1) v`.

    The argument is one vector for all trials, or one per trial, where ``is_shared`` is false.
    """

    flow: "Flow"
    is_shared: bool = eqx.field(static=True)

    @property
    def in_space(self) -> Space:
        """Initial states."""
        batch, _, hidden = self.flow.states.shape
        shape = (hidden,) if self.is_shared else (batch, hidden)
        return Space(None, self.flow.origin, self.flow.trials, "parameters", (), (("initial_state", shape),))

    @property
    def out_space(self) -> Space:
        """Trajectories."""
        return self.flow.space

    @property
    def is_psd(self) -> bool:
        """Not square."""
        return False

    def mv(self, q: Any) -> Array:
        """Push a change of the initial state through the flow."""
        start = jnp.broadcast_to(q["initial_state"], self.flow.initial_state.shape)
        zeros = jnp.zeros_like(self.flow.states)
        return self.flow.tangent_flow(zeros, start)

    def rmv(self, r: Array) -> Any:
        """Gradient with respect to the initial state."""
        pulled = self.flow.weights[:, None] * self.flow.adjoint_start(r)
        return {"initial_state": jnp.sum(pulled, axis=0) if self.is_shared else pulled}


def acts_by_trial(operator: AbstractOperator) -> bool:
    """Whether an operator is made of those that never mix trials."""
    match operator:
        case Propagator():
            return True
        case Adjoint() | Scaled():
            return acts_by_trial(operator.operator)
        case Product():
            return all(acts_by_trial(factor) for factor in operator.factors)
        case Sum():
            return all(acts_by_trial(part) for part in operator.parts)
    return False
