"""Several tasks in one batch: how the update of each moves the others (hazelden2025 (11), E.2)."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._checks import is_concrete
from ._flow import Flow


class Interference(eqx.Module):
    """How tasks act on one another; rows are the task acted on, columns the task that acts.

    Attributes
    ----------
    interference
        The document's M: cosine between the change of task i by its own error and by that of task j. The
        diagonal is one; not symmetric.
    gradient_cosine
        Cosine between the gradients of the two tasks; symmetric.
    changes
        Change of all states by the error of each task, per unit learning rate, (task, batch, time, hidden).
        Their sum is the predicted change.
    tasks
        The labels, in the order of the rows.
    """

    interference: Float[Array, "tasks tasks"]
    gradient_cosine: Float[Array, "tasks tasks"]
    changes: Float[Array, "tasks batch time hidden"]
    tasks: np.ndarray
    cosine: Array | None
    counts: tuple[int, ...] = eqx.field(static=True)

    @property
    def state_cosine(self) -> Float[Array, "tasks tasks"]:
        """Cosine between the states of two tasks, trial n of one paired with trial n of the other."""
        if self.cosine is None:
            raise ValueError(_unpaired(self.counts))
        return self.cosine


def _unpaired(counts: tuple[int, ...]) -> str:
    return (
        "Comparing states of tasks pairs trial n of one with trial n of the other, and needs equally many "
        "trials of "
        f"each; the tasks have {list(counts)}."
    )


def interference(
    flow: Flow,
    task_index: Any,
    targets: Float[Array, "..."],
    mask: Float[Array, "..."] | None = None,
) -> Interference:
    r"""Interference between tasks: :math:`\delta z_{ij} = -P_i K_{ij} P_j^* Err_j` and what follows from it.

    Parameters
    ----------
    flow
        The model along the trajectories of all trials.
    task_index
        The task of each trial: ``batch`` integers (or names), at least two different ones. Trial weights are
        those of the whole batch.
    targets, mask
        As in :meth:`Flow.error`.
    """
    tasks, members = _check_tasks(flow, task_index)
    flow.check_targets(targets, mask)
    error = flow.error(targets, mask)
    changes, gram = _changes(flow, error, jnp.asarray(members))
    cosines, angles, sizes = _angles(changes, gram, flow.weights, jnp.asarray(members))
    for j, i in np.argwhere(~(np.asarray(sizes).T > 0)) if is_concrete(sizes) else ():
        raise ValueError(
            f"The error of task {tasks[j].item()!r} does not change the states of task {tasks[i].item()!r} "
            "(zero change): cosines are not defined. Check its targets and mask."
        )
    counts = tuple(int(member.sum()) for member in members)
    paired = _cosine(flow.states, members, False) if len(set(counts)) == 1 else None
    return Interference(cosines, angles, changes, tasks, paired, counts)


def _check_tasks(flow: Flow, task_index: Any) -> tuple[np.ndarray, np.ndarray]:
    labels = np.asarray(task_index)
    batch = flow.states.shape[0]
    if labels.shape != (batch,):
        raise ValueError(f"`task_index` must have one label per trial, shape ({batch},), got {labels.shape}.")
    if labels.dtype.kind not in "iubUS":
        raise ValueError(f"`task_index` must hold integers or names, got {labels.dtype}.")
    tasks = np.unique(labels)
    if len(tasks) < 2:
        raise ValueError(
            f"`task_index` must name at least two tasks, each with a trial, got {tasks.tolist()}."
        )
    return tasks, np.stack([labels == task for task in tasks])


@eqx.filter_jit
def _changes(flow: Flow, error: Array, members: Array) -> tuple[Array, Array]:
    tangent, P = flow.parameter_tangent, flow.propagator
    adjoint = P.rmv(error)  # P never mixes trials: one adjoint serves all tasks

    def one(member):
        gradient = tangent.rmv(jnp.where(member[:, None, None], adjoint, 0))
        return gradient, -P.mv(tangent.mv(gradient))

    gradients, changes = jax.lax.map(one, members)
    flat = jnp.concatenate([leaf.reshape(len(members), -1) for leaf in jax.tree.leaves(gradients)], axis=1)
    return changes, flat @ flat.T


@eqx.filter_jit
def _angles(changes: Array, gram: Array, weights: Array, members: Array) -> tuple[Array, Array, Array]:
    """Cosines of changes and of gradients, and the size of the change of task i by task j."""
    weighted = members.astype(weights.dtype) * weights[None, :]
    # within[i, j, l]: inner product over the trials of task i of the changes by tasks j and l.
    within = jnp.einsum("ib,jbth,lbth->ijl", weighted, changes, changes)
    sizes = jnp.sqrt(jnp.diagonal(within, axis1=1, axis2=2))
    own = jnp.diagonal(within, axis1=0, axis2=1).T
    lengths = jnp.sqrt(jnp.diagonal(gram))
    cosines = own / jnp.diagonal(sizes)[:, None] / sizes
    return cosines, gram / lengths[:, None] / lengths[None, :], sizes


def state_cosine(flow: Flow, task_index: Any, *, is_centered: bool = False) -> Float[Array, "tasks tasks"]:
    r"""Cosine :math:`\langle z_i, z_j\rangle/(|z_i| |z_j|)` between the states of tasks, trial by trial.

    Parameters
    ----------
    flow
        The model along its trajectories.
    task_index
        The task of each trial; every task needs equally many trials, in the same order of conditions.
    is_centered
        Subtract the mean over all trials and times first; raw by default, as in the document.
    """
    _, members = _check_tasks(flow, task_index)
    counts = tuple(int(member.sum()) for member in members)
    if len(set(counts)) > 1:
        raise ValueError(_unpaired(counts))
    return _cosine(flow.states, members, is_centered)


def _cosine(states: Array, members: np.ndarray, is_centered: bool) -> Array:
    states = states - jnp.mean(states, axis=(0, 1), keepdims=True) if is_centered else states
    parts = jnp.stack([states[np.flatnonzero(member)].reshape(-1) for member in members])
    sizes = jnp.linalg.norm(parts, axis=1)
    if is_concrete(sizes) and not bool(jnp.all(sizes > 0)):
        raise ValueError("The states of a task are zero: their cosine is not defined.")
    return (parts @ parts.T) / sizes[:, None] / sizes[None, :]


def rayleigh_matrix(
    flow: Flow, task_index: Any, targets: Float[Array, "..."], mask: Float[Array, "..."] | None = None
) -> Float[Array, "tasks tasks"]:
    r"""The document's matrix (E.2), :math:`R_{ij} = \langle a_j, K_{ij} a_j\rangle/\langle a_j, a_j\rangle`.

    Defined only for paired tasks with equally many trials; the gradient cosine of :func:`interference` is its
    well-defined relative.
    """
    _, members = _check_tasks(flow, task_index)
    counts = tuple(int(member.sum()) for member in members)
    if len(set(counts)) > 1:
        raise ValueError(_unpaired(counts))
    adjoint = flow.adjoint(targets, mask)
    trials = jnp.asarray([np.flatnonzero(member) for member in members])
    return _rayleigh_matrix(flow, adjoint, jnp.asarray(members), trials)


@eqx.filter_jit
def _rayleigh_matrix(flow: Flow, adjoint: Array, members: Array, trials: Array) -> Array:
    K = flow.parameter_operator

    def column(pair):
        member, own = pair
        kicked = K.mv(jnp.where(member[:, None, None], adjoint, 0))
        a = flow.weights[own][:, None, None] * adjoint[own]
        norm = jnp.sum(a * adjoint[own])
        return jax.vmap(lambda other: jnp.sum(a * kicked[other]) / norm)(trials)

    return jax.lax.map(column, (members, trials)).T
