"""A recurrent model along its trajectories: the place where all operators of hazelden2025 come from."""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

from .._checks import is_concrete
from ._linearization import Slopes, slopes, tangent_step
from ._model import Model, as_model, check_cell
from ._operator import AbstractOperator, Product, Space
from ._parameter import OutputTangent, ParameterOperator, ParameterTangent, gram, parameter_operator
from ._propagator import InitialTangent, Propagator


class Flow(eqx.Module):
    """A model, its inputs and its states; made by :func:`linearize`.

    ``states`` (batch, time, hidden) are the states after each input, ``weights`` the weight of each trial in
    the loss and in the inner product, ``slopes`` what the linearised steps need. ``origin`` and ``trials``
    mark which states of which call a subset of trials comes from.
    """

    model: Model
    inputs: Float[Array, "batch time inputs"]
    initial_state: Float[Array, "batch hidden"]
    states: Float[Array, "batch time hidden"]
    weights: Float[Array, " batch"]
    slopes: Slopes
    origin: Array
    trials: Array | None

    @property
    def space(self) -> Space:
        """Trajectories of the hidden state, with their inner product."""
        return Space(self.weights, self.origin, self.trials, "trajectories", self.states.shape)

    @property
    def output_space(self) -> Space:
        """Trajectories of the output."""
        self._need_readout("The error")
        outputs = jax.eval_shape(lambda z: self.model.output({}, z), self.initial_state[0]).shape[0]
        return Space(self.weights, self.origin, self.trials, "outputs", (*self.states.shape[:2], outputs))

    @property
    def propagator(self) -> Propagator:
        """The linearised flow propagator P."""
        return Propagator(self)

    @property
    def parameter_operator(self) -> ParameterOperator:
        """The parameter operator K."""
        return parameter_operator(self)

    @property
    def parameter_tangent(self) -> ParameterTangent:
        """The map G with K = G G*."""
        return ParameterTangent(self, self.model.step_names)

    def preconditioned(self, preconditioner: Mapping[str, Any]) -> ParameterOperator:
        """The operator K_M = G M G* of gradient descent with a learning rate per parameter.

        Parameters
        ----------
        preconditioner
            For some of the leaves (see ``parameter_operator.terms`` for the names) a nonnegative number or
            an array of the leaf's shape: learning rates, 0 for a frozen leaf, 1/(sqrt(v) + eps) for one step
            of Adam. Leaves left out count 1.
        """
        return parameter_operator(self, preconditioner)

    def output_operator(self, trained_readout: bool = True) -> Product:
        r"""The operator Theta of the outputs, hazelden2025 (6) with both cases.

        One step of size :math:`\eta` on the loss :math:`\kappa |y - y^*|^2` changes the outputs by
        :math:`-2 \kappa \eta\, \Theta (y - y^*)`.

        Parameters
        ----------
        trained_readout
            Whether the readout is trained as well. The document states only the case without; the missing
            term was 39-94 % of the change in tests.
        """
        self._need_readout("`output_operator`")
        return gram(OutputTangent(self, trained_readout))

    def initial_operator(self, is_shared: bool = True) -> Product:
        """The term P_0 P_0* that a trained initial state, one for all trials or one each, adds to P K P*."""
        return gram(InitialTangent(self, is_shared))

    @property
    def outputs(self) -> Float[Array, "batch time outputs"]:
        """Outputs read from the states."""
        self._need_readout("`outputs`")
        return _outputs(self)

    def error(
        self,
        targets: Float[Array, "..."],
        mask: Float[Array, "..."] | None = None,
        *,
        scale: int | float = 1.0,
        loss: Callable[[Array, Array], Array] | None = None,
    ) -> Float[Array, "batch time hidden"]:
        r"""Gradient of each trial's loss in its states, :math:`Err_{bt} = \partial l_b / \partial z_{bt}`.

        The trial weights are not in it: the loss is :math:`L = \sum_b w_b l_b` with
        :math:`l_b = \kappa \sum_{t,k} m_{btk} (y - y^*)^2_{btk}`.

        Parameters
        ----------
        targets
            Wanted outputs, (batch, time, outputs). Entries outside the mask are not read.
        mask
            1 where an output counts, 0 elsewhere, in the shape of ``targets``; it also ends short trials.
        scale
            The factor kappa: 1 for a sum, ``1 / (time * outputs)`` for a mean over axes, ``batch / (2 *
            mask.sum())`` for the pooled loss of the recurrent models.
        loss
            Another loss, entry by entry: ``loss(outputs, targets)`` of the same shape. Squared error by
            default.
        """
        self.check_targets(targets, mask)
        return _error(self, jnp.asarray(targets), jnp.asarray(mask), scale, loss)

    def adjoint(
        self,
        targets: Float[Array, "..."],
        mask: Float[Array, "..."] | None = None,
        *,
        scale: int | float = 1.0,
    ) -> Float[Array, "batch time hidden"]:
        """The adjoint a = P* Err, hazelden2025 (2)."""
        return self.propagator.T @ self.error(targets, mask, scale=scale)

    def gradient(
        self,
        targets: Float[Array, "..."],
        mask: Float[Array, "..."] | None = None,
        *,
        scale: int | float = 1.0,
    ) -> dict[str, Array]:
        """Gradient G* a of the loss with respect to the parameters of the step, by name."""
        return self.parameter_tangent.T @ self.adjoint(targets, mask, scale=scale)

    def predicted_change(
        self,
        targets: Float[Array, "..."],
        mask: Float[Array, "..."] | None = None,
        *,
        scale: int | float = 1.0,
    ) -> Float[Array, "batch time hidden"]:
        r"""Change of the states per unit learning rate, :math:`-P K P^* Err`, hazelden2025 (5).

        One step :math:`\theta - \eta \nabla L` changes the states by :math:`\eta` times this, up to
        :math:`O(\eta^2)`.
        """
        error = self.error(targets, mask, scale=scale)
        return -(self.propagator @ self.parameter_operator @ self.propagator.T @ error)

    def take(self, trials: Any) -> "Flow":
        """The same model on some of the trials, whose weights are kept as they are.

        ``trials`` are indices or a boolean mask, as in :func:`restrict`.
        """
        trials = jnp.asarray(_check_trials("trials", trials, self) if is_concrete(trials) else trials)
        whole = jnp.arange(self.states.shape[0]) if self.trials is None else self.trials
        some = dataclasses.replace(
            self,
            inputs=self.inputs[trials],
            initial_state=self.initial_state[trials],
            states=self.states[trials],
            weights=self.weights[trials],
            trials=whole[trials],
        )
        return dataclasses.replace(some, slopes=_slopes(some))

    def check_targets(self, targets: Any, mask: Any) -> None:
        """Refuse targets or masks that do not fit."""
        shape = self.output_space.shape
        if tuple(jnp.shape(targets)) != shape:
            raise ValueError(
                f"`targets` must have shape (batch, time, outputs) = {shape}, got "
                f"{tuple(jnp.shape(targets))}."
            )
        if mask is None:
            raise ValueError(
                "`targets` need a `mask` that says which outputs count; pass `jnp.ones_like(targets)` if "
                "all of them do."
            )
        if tuple(jnp.shape(mask)) != shape:
            raise ValueError(
                f"`mask` must have the shape of `targets`, {shape}, got {tuple(jnp.shape(mask))}."
            )
        if is_concrete(targets, mask):
            counts = np.asarray(mask) != 0
            bad = counts & ~(np.isfinite(np.asarray(targets)) & np.isfinite(np.asarray(mask)))
            if bad.any():
                trial, step, output = np.argwhere(bad)[0]
                raise ValueError(
                    f"`targets` or `mask` are not finite where the mask counts, first at trial {trial}, step "
                    f"{step}, output {output}. Set the mask to 0 where there is no target."
                )

    def _need_readout(self, what: str) -> None:
        if not self.model.has_readout:
            raise ValueError(
                f"{what} needs a readout, and this model has none. Give the cell a method `readout(state)`, "
                "or pass `readout=(C, c)` to `linearize`."
            )

    @property
    def states_before(self) -> Array:
        """States before each input, where the derivatives of the step are taken."""
        return jnp.concatenate([self.initial_state[:, None], self.states[:, :-1]], axis=1)

    def rows(self, before: Array, params: dict[str, Array] | None = None) -> Array:
        """One step from every state at once."""
        step = jax.vmap(jax.vmap(self.model.step, (None, 0, 0)), (None, 0, 0))
        return step(params or {}, before, self.inputs)

    def outputs_of(self, states: Array, params: dict[str, Array] | None = None) -> Array:
        """Outputs read from any states."""
        return jax.vmap(jax.vmap(self.model.output, (None, 0)), (None, 0))(params or {}, states)

    def tangent_flow(self, q: Array, start: Array | None = None) -> Array:
        """Linearised flow with forcing ``q`` and a change ``start`` of the initial states."""

        def step(p, now):
            now, q = now
            p = tangent_step(self.model, p, self.inputs[:, 0], now)(p) + q
            return p, p

        start = jnp.zeros_like(self.initial_state) if start is None else start
        p = jax.lax.scan(step, start, (self.slopes, jnp.swapaxes(q, 0, 1)))[1]
        return jnp.swapaxes(p, 0, 1)

    def _adjoint_scan(self, r: Array) -> tuple[Array, Array]:
        def step(carry, now):
            now, r = now
            a = r + carry
            forward = tangent_step(self.model, carry, self.inputs[:, 0], now)
            return jax.linear_transpose(forward, carry)(a)[0], a

        start = jnp.zeros_like(self.initial_state)
        start, a = jax.lax.scan(step, start, (self.slopes, jnp.swapaxes(r, 0, 1)), reverse=True)
        return start, jnp.swapaxes(a, 0, 1)

    def adjoint_flow(self, r: Array) -> Array:
        """Adjoint flow with source ``r``."""
        return self._adjoint_scan(r)[1]

    def adjoint_start(self, r: Array) -> Array:
        """What the adjoint flow leaves at the initial states."""
        return self._adjoint_scan(r)[0]


def linearize(
    cell: Any,
    inputs: Shaped[Array, "..."],
    initial_state: Any = None,
    weights: Float[Array, "..."] | None = None,
    *,
    params: Any = None,
    readout: Any = None,
    trainable: Any = None,
) -> Flow:
    """Run a recurrent model over trials and keep what its operators need.

    Parameters
    ----------
    cell
        Anything with ``step(state, input) -> state`` (an Equinox module, say; ``readout(state)`` and
        ``initial_state()`` are used where they exist), or a function ``step(params, state, input)`` with
        ``params=``. The state may be any pytree of arrays; operators see it as one vector, leaves in order.
    inputs
        Inputs of each trial, (batch, time, inputs).
    initial_state
        One state for all trials, or one per trial (a leading axis of length batch).
    weights
        Weight of each trial, nonnegative with sum one; 1/batch each by default.
    params
        Parameters of a step function; every leaf must be a real floating-point array.
    readout
        For models without their own: a pair ``(C, c)`` with outputs ``C z + c`` of the flat state (c may be
        None), or a function ``readout(params, state)``.
    trainable
        Which leaves of a cell are parameters, as in ``equinox.partition``; by default every floating-point
        array.

    Returns
    -------
    The flow. A trajectory that is not finite is refused, with the trial and the step where it left.
    """
    check_cell(cell, params)
    inputs = _check_inputs(inputs)
    single, states = _initial(cell, params, initial_state, inputs.shape[0])
    model = as_model(cell, single, inputs[0, 0], params, readout, trainable)
    _check_purity(model, single, inputs[0, 0])
    start, z, tangents, probe = _prepare(model, inputs, single if states is None else states, states is None)
    weights = _check_weights(weights, inputs.shape[0], z.dtype)
    flow = Flow(model, inputs, start, z, weights, tangents, z, None)
    if is_concrete(z, model.params):
        _check_finite(flow, probe)
    return flow


def _check_inputs(inputs: Any) -> Array:
    inputs = jnp.asarray(inputs)
    if inputs.ndim != 3 or 0 in inputs.shape[:2]:
        raise ValueError(
            "`inputs` must have shape (batch, time, inputs) with at least one trial and one step, "
            f"got {tuple(inputs.shape)}."
        )
    if not jnp.issubdtype(inputs.dtype, jnp.floating):
        raise ValueError(f"`inputs` must be floating point, got {inputs.dtype}.")
    return inputs


def _initial(cell: Any, params: Any, initial_state: Any, batch: int) -> tuple[Any, Any]:
    """One state as a template, and a state per trial, or None where all start from the template."""
    if initial_state is None:
        if params is not None or not callable(getattr(cell, "initial_state", None)):
            raise ValueError(
                "`initial_state` is needed: this model has no method `initial_state()`. Pass one state for "
                "all trials, or one per trial with a leading axis of length batch."
            )
        return cell.initial_state(), None
    initial_state = jax.tree.map(jnp.asarray, initial_state)
    leaves = jax.tree.leaves(initial_state)
    own = getattr(cell, "initial_state", None) if params is None else None
    ndims = (
        [leaf.ndim for leaf in jax.tree.leaves(jax.eval_shape(own))] if callable(own) else [1] * len(leaves)
    )
    extra = {leaf.ndim - ndim for leaf, ndim in zip(leaves, ndims, strict=False)}
    if extra == {0} and len(leaves) == len(ndims):
        return initial_state, None
    if extra == {1}:
        sizes = sorted({leaf.shape[0] for leaf in leaves})
        if sizes == [batch]:
            return jax.tree.map(lambda leaf: leaf[0], initial_state), initial_state
        raise ValueError(f"`initial_state` has {sizes[0]} trials, `inputs` have {batch}.")
    raise ValueError(
        "`initial_state` must be one state, or one per trial with a leading axis of length batch = "
        f"{batch}; got leaves of shape {[leaf.shape for leaf in leaves]}."
    )


def _check_weights(weights: Any, batch: int, dtype: Any) -> Array:
    if weights is None:
        return jnp.asarray(np.full(batch, 1 / batch), dtype)
    weights = jnp.asarray(weights, dtype)
    if weights.shape != (batch,):
        raise ValueError(f"`weights` must have one entry per trial, shape ({batch},), got {weights.shape}.")
    if is_concrete(weights):
        values = np.asarray(weights, np.float64)
        if not np.all(np.isfinite(values)) or values.min() < 0:
            raise ValueError(f"`weights` must be finite and nonnegative, got {values.tolist()}.")
        if abs(values.sum() - 1) > 1e-5:
            raise ValueError(f"`weights` must sum to one, got {values.sum():.6g}; divide by their sum.")
    return weights


def _check_purity(model: Model, state: Any, x: Array) -> None:
    """Trace the step twice: a memory or a random number outside the arguments gives two programs."""
    z = jax.eval_shape(model.flatten, state)
    programs = [jax.make_jaxpr(model.step)(model.params, z, x) for _ in range(2)]
    texts = {re.sub("0x[0-9a-f]+", "", str(program.jaxpr)) for program in programs}
    constants = [[np.asarray(c) for c in program.consts if _is_plain(c)] for program in programs]
    is_same = all(np.array_equal(a, b, equal_nan=True) for a, b in zip(*constants, strict=False))
    if len(texts) > 1 or not is_same:
        raise ValueError(
            "The step gives different results for the same arguments: it keeps state of its own or draws "
            "random numbers. Make that memory part of the state, and noise part of the inputs."
        )


def _is_plain(constant: Any) -> bool:
    return is_concrete(constant) and eqx.is_inexact_array_like(constant)


def _check_finite(flow: Flow, probe: Array) -> None:
    for name, leaf in flow.model.params.items():
        if not np.all(np.isfinite(np.asarray(leaf))):
            raise ValueError(f"Parameter `{name}` is not finite.")
    for name, array in (("inputs", flow.inputs), ("initial_state", flow.initial_state)):
        if not np.all(np.isfinite(np.asarray(array))):
            raise ValueError(f"`{name}` are not finite.")
    _report(
        flow.states,
        "The trajectory left the finite range",
        "A smaller time step or weaker weights may help.",
    )
    _report(
        probe,
        "The derivative of the step is not finite",
        "Look for a quotient 0/0 or a root of zero in the step; a `where` needs safe values in each branch.",
    )


def _report(values: Array, what: str, advice: str) -> None:
    bad = np.argwhere(~np.all(np.isfinite(np.asarray(values)), axis=2))
    if len(bad):
        trial, step = bad[np.argmin(bad[:, 1])]
        count = len(np.unique(bad[:, 0]))
        raise ValueError(f"{what} at trial {trial}, step {step} ({count} of {len(values)} trials). {advice}")


@eqx.filter_jit
def _prepare(model: Model, inputs: Array, states: Any, is_shared: bool) -> tuple[Array, Array, Slopes, Array]:
    """Initial states, trajectories, slopes, and derivatives along one direction to look for bad numbers."""
    if is_shared:
        start = jnp.broadcast_to(model.flatten(states), (len(inputs), model.state_size))
    else:
        start = jax.vmap(model.flatten)(states)

    def step(z, x):
        z = jax.vmap(model.step, (None, 0, 0))({}, z, x)
        return z, z

    z = jnp.swapaxes(jax.lax.scan(step, start, jnp.swapaxes(inputs, 0, 1))[1], 0, 1)
    before = jnp.concatenate([start[:, None], z[:, :-1]], axis=1)
    params = {name: model.params[name] for name in model.step_names}
    along = jax.tree.map(jnp.ones_like, (params, before))
    rows = jax.vmap(jax.vmap(model.step, (None, 0, 0)), (None, 0, 0))
    probe = jax.jvp(lambda p, before: rows(p, before, inputs), (params, before), along)[1]
    return start, z, slopes(model, before, inputs), probe


@eqx.filter_jit
def _slopes(flow: Flow) -> Slopes:
    return slopes(flow.model, flow.states_before, flow.inputs)


@eqx.filter_jit
def _outputs(flow: Flow) -> Array:
    return flow.outputs_of(flow.states)


@eqx.filter_jit
def _error(flow: Flow, targets: Array, mask: Array, scale: Any, loss: Callable | None) -> Array:
    mask = mask.astype(flow.states.dtype)

    def total(states):
        outputs = flow.outputs_of(states)
        # Outside the mask a target may be anything, NaN included: compare with a constant there.
        wanted = jnp.where(mask != 0, targets, jax.lax.stop_gradient(outputs))
        entries = (outputs - wanted) ** 2 if loss is None else loss(outputs, wanted)
        return jnp.sum(mask * entries)

    return scale * jax.grad(total)(flow.states)


def restrict(operator: AbstractOperator, trials_i: Any, trials_j: Any = None) -> AbstractOperator:
    """The block of an operator from the trials ``trials_j`` to the trials ``trials_i``, hazelden2025 (11).

    Parameters
    ----------
    operator
        K or one of its terms, or P or its inverse (which have diagonal blocks only).
    trials_i, trials_j
        Indices, or a boolean mask, of the trials acted on and of those that act; the same by default. The
        weights of the whole batch are kept, so that the blocks add up to the operator.
    """
    trials_j = trials_i if trials_j is None else trials_j
    if isinstance(operator, ParameterOperator) and not operator.is_block:
        flow = operator.left.flow
        i, j = (_check_trials(name, t, flow) for name, t in (("trials_i", trials_i), ("trials_j", trials_j)))
        is_block = not np.array_equal(i, j)
        left = ParameterTangent(flow.take(i), operator.left.names)
        right = ParameterTangent(flow.take(j), operator.left.names) if is_block else left
        return ParameterOperator(left, right, operator.scale, is_block)
    if isinstance(operator, Propagator):
        i, j = (
            _check_trials(name, t, operator.flow)
            for name, t in (("trials_i", trials_i), ("trials_j", trials_j))
        )
        if not np.array_equal(i, j):
            raise ValueError(
                "P never mixes trials: only its diagonal blocks, `trials_i` equal to `trials_j`, exist."
            )
        return Propagator(operator.flow.take(i), operator.is_inverse)
    raise ValueError(
        f"`restrict` takes K, one of its terms, or P, got {type(operator).__name__}. Restrict the factors "
        "of a product."
    )


def _check_trials(name: str, trials: Any, flow: Flow) -> np.ndarray:
    batch = flow.states.shape[0]
    trials = np.atleast_1d(np.asarray(trials))
    if trials.dtype == bool:
        if trials.shape != (batch,):
            raise ValueError(f"`{name}` as a mask must have shape ({batch},), got {trials.shape}.")
        trials = np.flatnonzero(trials)
    if trials.ndim != 1 or trials.size == 0 or not np.issubdtype(trials.dtype, np.integer):
        raise ValueError(f"`{name}` must be at least one trial, as indices or a mask, got {trials!r}.")
    if trials.min() < 0 or trials.max() >= batch or len(np.unique(trials)) != len(trials):
        raise ValueError(f"`{name}` must be different trials from 0 to {batch - 1}, got {trials.tolist()}.")
    return trials
