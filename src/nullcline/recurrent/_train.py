"""Training by gradient descent: one compiled loop for one network or for many.

The trials of step k come from ``fold_in(key, k)`` and a checkpoint holds all else that the loop carries, so a
run that was stopped ends, when resumed, with the numbers of one that was not.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jax import lax
from jaxtyping import Array, Float, Int, Key, PRNGKeyArray, PyTree

from .._checks import require_size
from ._cells import AbstractCell, RateCell
from ._linear_tasks import Constant, is_short_trial, is_unstable_step
from ._measures import check_fraction, epochs_to, with_recurrent
from ._run import trial_outputs
from ._trials import AbstractTask, check_fits, loss

Tree = TypeVar("Tree")
Report = Callable[["Checkpoint"], bool | None]


class Checkpoint(eqx.Module):
    """All that training carries from one step to the next, with the record of the steps before.

    Its structure depends only on the cell, the optimizer and the numbers of steps and snapshots, so that
    ``equinox.tree_serialise_leaves`` writes it and :func:`first_checkpoint` gives the form to read it back.
    """

    step: Int[Array, ""]
    cell: AbstractCell
    optimizer_state: PyTree
    losses: Float[Array, "*networks steps"]
    diverged_at: Int[Array, "*networks"]
    snapshots: AbstractCell

    @property
    def loss(self) -> Float[Array, "*networks"]:
        """Loss of the last step taken."""
        return self.losses[..., max(int(self.step) - 1, 0)]


class TrainResult(eqx.Module):
    """What training did.

    Attributes
    ----------
    losses
        Loss of each step's batch, before its update; NaN from a divergence on and for steps not taken.
    initial, final
        The network before and after. After a divergence ``final`` has the last finite weights.
    snapshots, snapshot_steps
        Networks stacked along a leading axis, and the number of updates before each of them.
    diverged_at
        First step with a nonfinite loss or update, -1 if there was none.
    checkpoint
        Where ``train(..., resume=...)`` goes on.
    descent_rate
        Learning rate of plain gradient descent on the recurrent weights alone; ``None`` for another training.
    """

    losses: Float[Array, "*networks steps"]
    initial: AbstractCell
    final: AbstractCell
    snapshots: AbstractCell
    snapshot_steps: Int[np.ndarray, " snapshots"]
    diverged_at: Int[Array, "*networks"]
    checkpoint: Checkpoint
    task: AbstractTask
    fraction: float = eqx.field(static=True)
    descent_rate: Float[Array, "*networks"] | None = None

    @property
    def status(self) -> Any:
        """``converged``, ``not_converged``, ``diverged`` or ``stopped``; a list for many networks.

        Converged means that the loss fell below ``fraction`` of its first value.
        """
        words = [
            self._word(losses, int(diverged))
            for losses, diverged in zip(
                np.asarray(self.losses).reshape(-1, self.losses.shape[-1]),
                np.asarray(self.diverged_at).ravel(),
                strict=True,
            )
        ]
        return words[0] if self.losses.ndim == 1 else words

    def _word(self, losses: np.ndarray, diverged_at: int) -> str:
        if diverged_at >= 0:
            return "diverged"
        if int(self.checkpoint.step) < len(losses):
            return "stopped"
        return "not_converged" if np.isnan(epochs_to(jnp.asarray(losses), self.fraction)) else "converged"

    @property
    def flags(self) -> Any:
        """Everything that forbids to take the result at face value; a list of tuples for many networks.

        ``diverged``, ``not_converged``, ``stopped``; for a linear network on the constant task also
        ``short_trial``, where the theory of the fixed point does not apply, and ``unstable_step``, where
        plain gradient descent on the recurrent weights takes steps above the critical one. (The critical step
        of other optimizers, or with trained in- and outputs, is not known.)
        """
        if self.losses.ndim == 1:
            return self._flags(self.status, self.initial, self.final, self.descent_rate)
        each = (self.initial, self.final, self.descent_rate)
        return [
            self._flags(status, *jax.tree.map(lambda leaf, i=i: leaf[i], each))
            for i, status in enumerate(self.status)
        ]

    def _flags(
        self, status: str, initial: AbstractCell, final: AbstractCell, rate: Array | None
    ) -> tuple[str, ...]:
        flags = () if status == "converged" else (status,)
        if isinstance(initial, RateCell) and isinstance(final, RateCell) and isinstance(self.task, Constant):
            if final.nonlinearity == "linear" and is_short_trial(final, self.task):
                flags += ("short_trial",)
            if rate is not None and is_unstable_step(initial, self.task, float(rate)):
                flags += ("unstable_step",)
        return flags


def first_checkpoint(
    cell: AbstractCell,
    *,
    steps: int = 1000,
    snapshot_every: int | None = None,
    optimizer: optax.GradientTransformation | None = None,
    trainable: Sequence[str] | None = None,
    is_many: bool = False,
) -> Checkpoint:
    """Checkpoint before the first step; also the form that a checkpoint on disk is read into."""
    optimizer = _default_optimizer() if optimizer is None else optimizer
    params, _ = eqx.partition(cell, _trainable(cell, trainable))
    networks = (cell.w.shape[0],) if is_many else ()
    init = jax.vmap(optimizer.init) if is_many else optimizer.init
    count = len(_snapshot_steps(steps, snapshot_every))
    axis = len(networks)

    def room(leaf):
        return jnp.zeros((*leaf.shape[:axis], count, *leaf.shape[axis:]), leaf.dtype)

    return Checkpoint(
        step=jnp.zeros((), jnp.int32),
        cell=cell,
        optimizer_state=init(params),
        losses=jnp.full((*networks, steps), jnp.nan, cell.dtype),
        diverged_at=jnp.full(networks, -1, jnp.int32),
        snapshots=jax.tree.map(room, cell),
    )


def train(
    cell: AbstractCell,
    task: AbstractTask,
    *,
    steps: int = 1000,
    batch_size: int = 32,
    optimizer: optax.GradientTransformation | None = None,
    learning_rate: float | Float[Array, ""] | None = None,
    trainable: Sequence[str] | None = None,
    snapshot_every: int | None = None,
    report: Report | None = None,
    resume: Checkpoint | None = None,
    fraction: float = 0.05,
    key: PRNGKeyArray,
) -> TrainResult:
    """Train a network on fresh trials at every step; the loop between two snapshots is one compiled program.

    Parameters
    ----------
    cell, task
        The network and the law of its trials; numbers of channels and ``dt`` must agree.
    steps, batch_size
        Number of updates, and of trials in each.
    optimizer
        Any Optax optimizer; Adam by default. Reuse one object, since a new one compiles again.
    learning_rate
        Multiplies the updates of the optimizer. By default 0.05/N with the default optimizer
        (schuessler2020), 1 with a given one. A change of it compiles nothing.
    trainable
        Names of the fields to train; by default every array of the cell (``w_in``, ``w``, ``w_out`` of a rate
        cell).
    snapshot_every
        Steps between snapshots; by default one snapshot at the end. The last one is always at the end.
    report
        Called with the :class:`Checkpoint` at each snapshot, to show progress or to save it; training stops
        when it returns true.
    resume
        Go on from this checkpoint; every other argument must be as before.
    fraction
        The network has converged once the loss is below this share of its first value.
    key
        Random key of the trials.
    """
    check_fits(cell, task)
    return _train(
        cell, task, steps, batch_size, optimizer, learning_rate, trainable, snapshot_every, report, resume,
        fraction, key, None,
    )  # fmt: skip


def train_many(
    cells: AbstractCell | Sequence[AbstractCell],
    task: AbstractTask,
    *,
    steps: int = 1000,
    batch_size: int = 32,
    optimizer: optax.GradientTransformation | None = None,
    learning_rate: float | Float[Array, ""] | Float[Array, " networks"] | None = None,
    trainable: Sequence[str] | None = None,
    snapshot_every: int | None = None,
    report: Report | None = None,
    resume: Checkpoint | None = None,
    fraction: float = 0.05,
    method: Literal["auto", "vmap", "map"] = "auto",
    key: PRNGKeyArray | Key[Array, " networks"],
) -> TrainResult:
    """Train many networks of one shape in one program; every array of the result has a leading network axis.

    A network that diverges keeps its last finite weights and touches no other.

    Parameters
    ----------
    cells
        A sequence of cells, or one cell whose arrays have a leading network axis (from ``vmap``).
    learning_rate
        One for all networks, or one each.
    method
        ``"vmap"`` steps all networks together, ``"map"`` trains one after the other. ``"auto"`` takes the
        faster one: vmap on an accelerator, map on a CPU, where stacked products only grow out of the cache.
    key
        One key each, or one for all: network i then sees the trials of ``train(cells[i], ...,
        key=fold_in(key, i))``.

    The other arguments are those of :func:`train`.
    """
    stacked = stack(cells)
    check_fits(stacked, task)
    if method not in ("auto", "vmap", "map"):
        raise ValueError(f"`method` must be 'auto', 'vmap' or 'map', got {method!r}.")
    if method == "auto":
        method = "map" if jax.default_backend() == "cpu" else "vmap"
    return _train(
        stacked, task, steps, batch_size, optimizer, learning_rate, trainable, snapshot_every, report, resume,
        fraction, key, method,
    )  # fmt: skip


def stack(cells: AbstractCell | Sequence[AbstractCell]) -> AbstractCell:
    """One cell whose arrays have a leading network axis."""
    if isinstance(cells, AbstractCell):
        if cells.w.ndim != 3:
            raise ValueError(
                "`cells` must be a sequence of cells, or one cell with a leading network axis; got one whose "
                f"`w` has shape {cells.w.shape}."
            )
        return cells
    cells = list(cells)
    if not cells:
        raise ValueError("`cells` is empty; give at least one cell.")
    if len({jax.tree.structure(cell) for cell in cells}) > 1 or len({cell.w.shape for cell in cells}) > 1:
        raise ValueError("`cells` must all be of one kind, with the same sizes and settings.")
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *cells)


def _train(
    cell, task, steps, batch_size, optimizer, learning_rate, trainable, snapshot_every, report, resume,
    fraction, key, method,
) -> TrainResult:  # fmt: skip
    # As Python's integers: NumPy's would be traced.
    steps, batch_size = require_size("steps", steps), require_size("batch_size", batch_size)
    check_fraction(fraction)
    is_many = method is not None
    if learning_rate is None:
        learning_rate = 0.05 / cell.hidden if optimizer is None else 1.0
    learning_rate = jnp.asarray(learning_rate, cell.dtype)
    _check_rate(learning_rate, cell.w.shape[:-2])
    optimizer = _default_optimizer() if optimizer is None else optimizer
    form = first_checkpoint(
        cell,
        steps=steps,
        snapshot_every=snapshot_every,
        optimizer=optimizer,
        trainable=trainable,
        is_many=is_many,
    )
    state = form if resume is None else resume
    _check_resume(state, form)
    keys = key
    if is_many:
        networks = cell.w.shape[0]
        keys = _keys(key, networks)
        learning_rate = jnp.broadcast_to(learning_rate, (networks,))
    ends = _snapshot_steps(steps, snapshot_every)
    spec = _trainable(cell, trainable)
    done = int(state.step)
    for index, end in enumerate(ends):
        if end <= done:
            continue
        state = _advance(
            state, jnp.asarray(index), jnp.asarray(end, jnp.int32), keys, learning_rate, spec, task,
            batch_size, optimizer, method,
        )  # fmt: skip
        done = int(end)
        if report is not None and report(state) and done < steps:
            break
    taken = np.asarray(ends[ends <= done])
    return TrainResult(
        losses=state.losses,
        initial=cell,
        final=state.cell,
        snapshots=jax.tree.map(
            lambda leaf: leaf[:, : len(taken)] if is_many else leaf[: len(taken)], state.snapshots
        ),
        snapshot_steps=taken,
        diverged_at=state.diverged_at,
        checkpoint=state,
        task=task,
        fraction=fraction,
        descent_rate=_descent_rate(cell, optimizer, learning_rate, spec),
    )


@eqx.filter_jit
def _advance(state, index, end, keys, learning_rate, spec, task, batch_size, optimizer, method) -> Checkpoint:
    """Take the steps up to ``end`` and record snapshot ``index``."""
    one = functools.partial(
        _steps, start=state.step, end=end, spec=spec, task=task, batch_size=batch_size, optimizer=optimizer
    )
    carried = (state.cell, state.optimizer_state, state.diverged_at, state.losses, keys, learning_rate)
    # Comparisons with theory need all digits of float32, which a GPU does not give by default.
    with jax.default_matmul_precision("highest"):
        if method is None:
            advanced = one(carried)
        elif method == "vmap":
            advanced = jax.vmap(one)(carried)
        else:
            advanced = lax.map(one, carried)
    cell, optimizer_state, diverged_at, losses = advanced
    axis = 0 if method is None else 1
    return Checkpoint(
        step=end,
        cell=cell,
        optimizer_state=optimizer_state,
        losses=losses,
        diverged_at=diverged_at,
        snapshots=jax.tree.map(
            lambda all_, now: lax.dynamic_update_index_in_dim(all_, now, index, axis), state.snapshots, cell
        ),
    )


def _steps(carried, *, start, end, spec, task, batch_size, optimizer):
    cell, optimizer_state, diverged_at, losses, key, learning_rate = carried
    params, frozen = eqx.partition(cell, spec)

    def objective(params, trials):
        return loss(trial_outputs(eqx.combine(params, frozen), trials), trials)

    def step(index, carry):
        params, optimizer_state, diverged_at, losses = carry
        trials = task.sample_for(eqx.combine(params, frozen), batch_size, key=jr.fold_in(key, index))
        value, gradient = jax.value_and_grad(objective)(params, trials)
        # Optax raises floats to integer powers, which strict promotion refuses.
        with jax.numpy_dtype_promotion("standard"):
            updates, new_state = optimizer.update(gradient, optimizer_state, params)
        new_params = jax.tree.map(lambda p, u: p + learning_rate * u, params, updates)
        was_alive = diverged_at < 0
        is_finite = jnp.isfinite(value) & _is_finite(new_params)
        # Once diverged, a network stands still: its last finite weights are kept.
        kept = _choose(was_alive & is_finite, (new_params, new_state), (params, optimizer_state))
        value = jnp.where(was_alive & jnp.isfinite(value), value, jnp.asarray(jnp.nan, value.dtype))
        return (
            *kept,
            jnp.where(was_alive & ~is_finite, index, diverged_at),
            lax.dynamic_update_index_in_dim(losses, value, index, 0),
        )

    # Bounds that are traced: one program serves every distance between snapshots.
    params, optimizer_state, diverged_at, losses = lax.fori_loop(
        start, end, step, (params, optimizer_state, diverged_at, losses)
    )
    return eqx.combine(params, frozen), optimizer_state, diverged_at, losses


def _is_finite(tree: PyTree) -> Array:
    # A sum of squares is nonfinite exactly when an entry is (or is so large that the next step is lost
    # anyway).
    return jnp.isfinite(sum(jnp.sum(leaf * leaf) for leaf in jax.tree.leaves(tree)))


def _choose(condition: Array, yes: Tree, no: Tree) -> Tree:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)


@functools.cache
def _default_optimizer() -> optax.GradientTransformation:
    # One object for all calls, so that the compiled loop is found again; the learning rate comes from
    # outside.
    return optax.adam(1.0)


def _check_rate(rate: Array, networks: tuple[int, ...]) -> None:
    if rate.shape not in ((), networks):
        one = "one number" if not networks else f"one number, or one for each of the {networks[0]} networks"
        raise ValueError(f"`learning_rate` must be {one}, got shape {rate.shape}.")
    if not np.all((np.asarray(rate) > 0) & np.isfinite(rate)):
        raise ValueError(f"`learning_rate` must be positive and finite, got {rate}.")


def _keys(key: Array, networks: int) -> Array:
    is_typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    shape = key.shape if is_typed else key.shape[:-1]
    if shape == ():
        return jax.vmap(functools.partial(jr.fold_in, key))(jnp.arange(networks))
    if shape != (networks,):
        raise ValueError(
            f"`key` must be one key, or one for each of the {networks} networks, got shape {shape}."
        )
    return key


def _descent_rate(
    cell: AbstractCell, optimizer: optax.GradientTransformation, learning_rate: Array, spec: PyTree
) -> Array | None:
    """Rate of plain gradient descent on the weights of a linear network alone, else ``None``.

    An optimizer is plain when it keeps no state and its updates are one negative multiple of the gradient.
    """
    if not isinstance(cell, RateCell) or cell.nonlinearity != "linear" or len(jax.tree.leaves(cell)) > 3:
        return None  # With biases there is another fixed point.
    params, _ = eqx.partition(cell, spec)
    state = optimizer.init(params)
    if jax.tree.leaves(state) or not spec.w or sum(jax.tree.leaves(spec)) > 1:
        return None
    # Two sizes, far apart, and weights of 1: neither clipping nor weight decay is taken for a multiple.
    small, ones = 1e-6 * np.cos(np.arange(cell.w.size)).reshape(cell.w.shape), jnp.ones_like(cell.w)
    ratios = []
    with jax.numpy_dtype_promotion("standard"):
        for gradient in (small, 1e12 * small):
            slopes = jnp.asarray(gradient, cell.dtype)
            update, _ = optimizer.update(with_recurrent(params, slopes), state, with_recurrent(params, ones))
            ratios.append(np.asarray(jax.tree.leaves(update)[0]) / gradient)
    factor = -float(ratios[0].ravel()[0])
    if factor <= 0 or not np.allclose(ratios, -factor, rtol=1e-4, atol=0):
        return None
    return factor * learning_rate


def _snapshot_steps(steps: int, every: int | None) -> np.ndarray:
    require_size("steps", steps)
    if every is None:
        return np.array([steps])
    require_size("snapshot_every", every)
    return np.unique(np.append(np.arange(every, steps + 1, every), steps))


def _trainable(cell: AbstractCell, names: Sequence[str] | None) -> PyTree:
    """Boolean tree of the cell, true at the arrays that are trained."""
    fields = [name for name, value in vars(cell).items() if eqx.is_array(value)]
    names = fields if names is None else [names] if isinstance(names, str) else list(names)
    unknown = sorted(set(names) - set(fields))
    if unknown or not names:
        raise ValueError(f"`trainable` must name some of {fields}, got {names}.")
    spec = jax.tree.map(lambda _: False, cell)
    return eqx.tree_at(lambda tree: [getattr(tree, name) for name in names], spec, [True] * len(names))


def _check_resume(state: Checkpoint, form: Checkpoint) -> None:
    def shapes(tree):
        return jax.tree.structure(tree), [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(tree)]

    if shapes(state) != shapes(form):
        raise ValueError(
            "`resume` does not belong to this training: cell (its precision too), optimizer, trainable "
            "fields, `steps` and `snapshot_every` must be those of the run that wrote the checkpoint."
        )
