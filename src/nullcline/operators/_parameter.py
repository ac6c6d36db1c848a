"""The parameter operator K = G M G* of hazelden2025, its terms, and the tangents behind it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._checks import is_concrete
from ._operator import AbstractOperator, Product, Space, compose

if TYPE_CHECKING:
    from ._flow import Flow


class ParameterTangent(AbstractOperator):
    r"""The map G from changes of the parameters to forcings, :math:`(G d)_{bt} = \partial_\theta F\, d`.

    The states are held fixed; the derivative is taken at the state before the step. Its adjoint is
    :math:`G^* q = \sum_b w_b \sum_t G_{bt}^T q_{bt}`, so that :math:`G^* P^* Err` is the gradient of the
    loss.
    """

    flow: "Flow"
    names: tuple[str, ...] = eqx.field(static=True)

    @property
    def in_space(self) -> Space:
        """Changes of the parameters, by name."""
        return parameter_space(self.flow, self.names)

    @property
    def out_space(self) -> Space:
        """Trajectories."""
        return self.flow.space

    @property
    def is_psd(self) -> bool:
        """Not square."""
        return False

    def _rows(self, params: dict[str, Array]) -> Array:
        return self.flow.rows(self.flow.states_before, params)

    def _params(self) -> dict[str, Array]:
        return {name: self.flow.model.params[name] for name in self.names}

    def mv(self, q: Any) -> Array:
        """Forcing of every step by a change of the parameters."""
        return jax.jvp(self._rows, (self._params(),), (q,))[1]

    def rmv(self, r: Array) -> Any:
        """Gradient with respect to the parameters, the states held fixed."""
        return jax.vjp(self._rows, self._params())[1](self.flow.weights[:, None, None] * r)[0]


def parameter_space(flow: "Flow", names: tuple[str, ...]) -> Space:
    """The space of changes of some parameter leaves."""
    shapes = tuple((name, flow.model.params[name].shape) for name in names)
    return Space(None, flow.origin, None, "parameters", (), shapes)


class ParameterOperator(AbstractOperator):
    r"""The parameter operator K, or a block of it between two sets of trials, or some of its terms.

    :math:`K = G M G^*` with a preconditioner M (the identity by default); block (i, j) takes trajectories of
    the trials of ``right`` to those of ``left`` and keeps the weights of the whole batch (hazelden2025 (11),
    erratum).
    """

    left: ParameterTangent
    right: ParameterTangent
    scale: dict[str, Array] | None
    is_block: bool = eqx.field(static=True)

    @property
    def in_space(self) -> Space:
        """Trajectories of the acting trials."""
        return self.right.out_space

    @property
    def out_space(self) -> Space:
        """Trajectories of the trials acted on."""
        return self.left.out_space

    @property
    def is_psd(self) -> bool:
        """K and its diagonal blocks are positive semi-definite."""
        return not self.is_block

    @property
    def terms(self) -> dict[str, "ParameterOperator"]:
        """One operator per parameter leaf; their sum is this operator."""
        return {
            name: ParameterOperator(
                ParameterTangent(self.left.flow, (name,)),
                ParameterTangent(self.right.flow, (name,)),
                None if self.scale is None else {name: self.scale[name]},
                self.is_block,
            )
            for name in self.left.names
        }

    def _precondition(self, gradient: dict[str, Array]) -> dict[str, Array]:
        if self.scale is None:
            return gradient
        return {name: self.scale[name] * leaf for name, leaf in gradient.items()}

    def mv(self, q: Array) -> Array:
        """Gradient of the parameters, preconditioned, and its effect on every step."""
        return self.left.mv(self._precondition(self.right.rmv(q)))

    def rmv(self, r: Array) -> Array:
        """The same with the two sets of trials exchanged."""
        return self.right.mv(self._precondition(self.left.rmv(r)))

    def square_root(self) -> AbstractOperator | None:
        """The operator G M^(1/2), if this is no off-diagonal block."""
        if self.is_block:
            return None
        if self.scale is None:
            return self.left
        root = Diagonal(self.left.in_space, {name: jnp.sqrt(leaf) for name, leaf in self.scale.items()})
        return Product((self.left, root), False)


class Diagonal(AbstractOperator):
    """Multiplication of parameters by nonnegative numbers."""

    space: Space
    scale: dict[str, Array]

    @property
    def in_space(self) -> Space:
        """Parameters."""
        return self.space

    @property
    def out_space(self) -> Space:
        """Parameters."""
        return self.space

    @property
    def is_psd(self) -> bool:
        """The entries are nonnegative."""
        return True

    def mv(self, q: Any) -> Any:
        """Multiply."""
        return {name: self.scale[name] * leaf for name, leaf in q.items()}

    def rmv(self, r: Any) -> Any:
        """Multiply."""
        return self.mv(r)


def parameter_operator(flow: "Flow", preconditioner: Mapping[str, Any] | None = None) -> ParameterOperator:
    """Build K of a flow; ``preconditioner`` gives a scale for some leaves, 1 for the others."""
    names = flow.model.step_names
    tangent = ParameterTangent(flow, names)
    if preconditioner is None:
        return ParameterOperator(tangent, tangent, None, False)
    unknown = sorted(set(preconditioner) - set(names))
    if unknown:
        raise ValueError(
            f"`preconditioner` names unknown parameters {unknown}; those of the step are {list(names)}."
        )
    scale = {}
    for name in names:
        leaf = flow.model.params[name]
        value = jnp.asarray(preconditioner.get(name, 1.0), leaf.dtype)
        if value.shape not in ((), leaf.shape):
            raise ValueError(
                f"`preconditioner['{name}']` must be a number or have shape {leaf.shape}, got {value.shape}."
            )
        if is_concrete(value) and not bool(jnp.all((value >= 0) & jnp.isfinite(value))):
            raise ValueError(f"`preconditioner['{name}']` must be nonnegative and finite.")
        scale[name] = jnp.broadcast_to(value, leaf.shape)
    return ParameterOperator(tangent, tangent, scale, False)


class OutputTangent(AbstractOperator):
    r"""The derivative of all outputs with respect to the parameters, through the states and the readout.

    :math:`A = C P G`, plus the direct derivative of the readout where it is trained; C is the derivative of
    the readout at each state. The output operator of hazelden2025 (6), corrected for a trained readout, is
    :math:`\Theta = A A^*`.
    """

    flow: "Flow"
    trained_readout: bool = eqx.field(static=True)

    @property
    def names(self) -> tuple[str, ...]:
        """Leaves that are trained."""
        model = self.flow.model
        extra = tuple(name for name in model.readout_names if name not in model.step_names)
        return model.step_names + (extra if self.trained_readout else ())

    @property
    def in_space(self) -> Space:
        """Changes of the parameters."""
        return parameter_space(self.flow, self.names)

    @property
    def out_space(self) -> Space:
        """Outputs."""
        return self.flow.output_space

    @property
    def is_psd(self) -> bool:
        """Not square."""
        return False

    def _read(self, params: dict[str, Array], states: Array) -> Array:
        return self.flow.outputs_of(states, params)

    def _split(self) -> tuple[ParameterTangent, dict[str, Array]]:
        model = self.flow.model
        direct = model.readout_names if self.trained_readout else ()
        return ParameterTangent(self.flow, model.step_names), {name: model.params[name] for name in direct}

    def mv(self, q: Any) -> Array:
        """Change of the outputs."""
        tangent, direct = self._split()
        states = self.flow.tangent_flow(tangent.mv({name: q[name] for name in tangent.names}))
        along = ({name: q[name] for name in direct}, states)
        return jax.jvp(self._read, (direct, self.flow.states), along)[1]

    def rmv(self, r: Array) -> Any:
        """Gradient with respect to the parameters."""
        tangent, direct = self._split()
        weights = self.flow.weights[:, None, None]
        by_readout = jax.vjp(lambda params: self._read(params, self.flow.states), direct)[1](weights * r)[0]
        # No weights here: the adjoint of G brings them.
        by_states = jax.vjp(lambda states: self._read(direct, states), self.flow.states)[1](r)[0]
        by_step = tangent.rmv(self.flow.adjoint_flow(by_states))
        return {name: _add(by_step.get(name), by_readout.get(name)) for name in self.names}


def _add(a: Array | None, b: Array | None) -> Array:
    if a is None:
        assert b is not None
        return b
    return a if b is None else a + b


def gram(operator: AbstractOperator) -> Product:
    """The positive semi-definite operator W W*."""
    return compose(operator, operator.T)
