r"""What makes spectra of K exact and fast: weights that enter as products, and units that own their weights.

In one step a weight W is *used* as e = W s: with features s (the vector it multiplies) and sensitivities
D = dF/de, its part of K is a sum of Khatri-Rao products,
:math:`K_j[(b,t),(b',t')] = w_{b'} \sum_{u,v} (s_u \cdot s'_v) D_u D_v'^T` (hazelden2025 (64), with the
double sum of the erratum). The uses are read off the traced step, so this works for any cell; a vector of
biases or gains is a use with s = 1. A cell is *unit-local* if each entry of e moves the components of one
unit only: then K has no entries between units, and D is known from one backward pass per component of a unit.

What is read off is checked against the matrix-free adjoint on random numbers before it is believed.
"""

import dataclasses
import functools
import weakref
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal
from jaxtyping import Array, Bool
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from ..measures import largest
from ._model import Model

if TYPE_CHECKING:
    from ._flow import Flow

# Primitives that only wrap another program.
_CALLS = (
    "jit",
    "pjit",
    "closed_call",
    "core_call",
    "custom_jvp_call",
    "custom_vjp_call",
    "remat",
    "checkpoint",
)


class NoStructureError(Exception):
    """The step uses a weight in a way that this module does not read."""


@dataclasses.dataclass(frozen=True)
class Use:
    """One product of a weight with a vector; ``name`` is the leaf, ``rows`` the length of e.

    ``is_flipped`` says that e runs over the columns of the leaf as it is stored.
    """

    name: str
    rows: int
    is_vector: bool
    is_flipped: bool


class _View:
    """A parameter leaf on its way to a product, possibly transposed."""

    def __init__(self, name: str, value: Array, is_transposed: bool):
        self.name, self.value, self.is_transposed = name, value, is_transposed


def _run(
    closed: ClosedJaxpr, args: list[Any], eps: list[Array], uses: list[Use], features: list[Any]
) -> list[Any]:
    """Evaluate a traced step with ``eps`` added to every product of a weight; note the uses on the way."""
    env: dict[Any, Any] = {}

    def read(var):
        return var.val if isinstance(var, Literal) else env[var]

    for var, value in zip(closed.jaxpr.constvars, closed.consts, strict=True):
        env[var] = value
    for var, value in zip(closed.jaxpr.invars, args, strict=True):
        env[var] = value
    for eqn in closed.jaxpr.eqns:
        values = [read(var) for var in eqn.invars]
        name = eqn.primitive.name
        views = [value for value in values if isinstance(value, _View)]
        if not views:
            outs = _bind(eqn, values)
        elif name in _CALLS:
            inner = eqn.params.get("jaxpr", eqn.params.get("call_jaxpr"))
            if inner is None:
                raise NoStructureError(name)
            inner = inner if isinstance(inner, ClosedJaxpr) else ClosedJaxpr(inner, ())
            outs = _run(inner, values, eps, uses, features)
        elif name == "transpose" and values[0].value.ndim == 2 and tuple(eqn.params["permutation"]) == (1, 0):
            outs = [_View(views[0].name, values[0].value.T, not values[0].is_transposed)]
        elif name == "dot_general" and len(views) == 1:
            outs = [_product(eqn, values, eps, uses, features)]
        else:
            raise NoStructureError(f"`{views[0].name}` goes through {name}")
        for var, value in zip(eqn.outvars, outs, strict=True):
            env[var] = value
    return [read(var) for var in closed.jaxpr.outvars]


def _bind(eqn: Any, values: list[Any]) -> list[Any]:
    outs = eqn.primitive.bind(*values, **eqn.primitive.get_bind_params(eqn.params))
    return list(outs) if eqn.primitive.multiple_results else [outs]


def _product(eqn: Any, values: list[Any], eps: list[Array], uses: list[Use], features: list[Any]) -> Array:
    ((left, right), (batch_left, batch_right)) = eqn.params["dimension_numbers"]
    side = 0 if isinstance(values[0], _View) else 1
    view, vector = values[side], values[1 - side]
    if batch_left or batch_right or len(left) != 1 or vector.ndim != 1:
        raise NoStructureError(f"`{view.name}` enters a product that is not matrix times vector")
    contracted = (left, right)[side][0]
    is_flipped = (contracted == 0) != view.is_transposed
    raw = [view.value, vector] if side == 0 else [vector, view.value]
    e = _bind(eqn, raw)[0]
    uses.append(Use(view.name, e.shape[0], False, is_flipped))
    features.append(vector)
    return e + eps[len(uses) - 1] if eps else e


def _evaluate(
    model: Model, names: tuple[str, ...], z: Array, x: Array, eps: list[Array]
) -> tuple[Array, list, list]:
    """One step with ``eps`` added to every use of some leaves: the state after it, features and uses."""
    params = {name: model.params[name] for name in names}
    if any(leaf.ndim not in (1, 2) for leaf in params.values()):
        raise NoStructureError("a leaf is neither a vector nor a matrix")
    vectors = {name: leaf for name, leaf in params.items() if leaf.ndim == 1}
    matrices = {name: leaf for name, leaf in params.items() if leaf.ndim == 2}
    uses = [Use(name, leaf.shape[0], True, False) for name, leaf in vectors.items()]
    features: list[Array] = [jnp.ones(1, z.dtype) for _ in uses]
    if eps:
        vectors = {name: leaf + eps[i] for i, (name, leaf) in enumerate(vectors.items())}

    def step(matrices, rest):
        model, vectors, z, x = rest
        return model.step({**vectors, **matrices}, z, x)

    rest, static = eqx.partition((model, vectors, z, x), eqx.is_array)
    closed = jax.make_jaxpr(lambda m, r: step(m, eqx.combine(r, static)))(matrices, rest)
    views = [_View(name, matrices[name], False) for name in sorted(matrices)]
    after = _run(closed, [*views, *jax.tree.leaves(rest)], eps, uses, features)[0]
    if isinstance(after, _View):
        raise NoStructureError(f"`{after.name}` is the state itself")
    return after, features, uses


def _uses(flow: "Flow", names: tuple[str, ...]) -> list[Use]:
    """The uses of some leaves in one step."""
    found: list[Use] = []

    def note(z, x):
        found.extend(_evaluate(flow.model, names, z, x, [])[2])
        return z

    jax.eval_shape(note, flow.initial_state[0], flow.inputs[0, 0])
    return found


@dataclasses.dataclass(frozen=True)
class Layout:
    """How the units of a cell own its weights, a property of its program.

    ``unit_of[u]`` (m_u,) is the unit that entry m of the use u moves, ``index`` (units, c) the state
    components of each unit (-1 where a unit has fewer), ``is_constant[u]`` whether gains depend on no state,
    ``same_as[u]`` the first use with the very same gains.
    """

    uses: tuple[Use, ...]
    unit_of: tuple[tuple[int, ...], ...]
    index: tuple[tuple[int, ...], ...]
    is_constant: tuple[bool, ...]
    same_as: tuple[int, ...]

    @functools.cached_property
    def members(self) -> tuple["Members", ...]:
        """For each use the entries that each unit owns."""
        return tuple(Members(_by_unit(owners, len(self.index))) for owners in self.unit_of)


@dataclasses.dataclass(frozen=True)
class Members:
    """Entries owned by each unit, -1 where a unit has fewer; one leaf, so that no call walks through it."""

    rows: tuple[tuple[int, ...], ...]


def _by_unit(unit_of: tuple[int, ...], units: int) -> tuple[tuple[int, ...], ...]:
    lists: list[list[int]] = [[] for _ in range(units)]
    for m, unit in enumerate(unit_of):
        lists[unit].append(m)
    width = max(len(members) for members in lists)
    return tuple(tuple(members) + (-1,) * (width - len(members)) for members in lists)


class UnitStructure(eqx.Module):
    """K of a unit-local cell in factored form, over rows (batch * time).

    ``gains[u]`` (rows, m_u, c; one row where they are constant) belong to use u of the layout, as do the
    features (rows, n_u); uses of one leaf add up before they are squared.
    """

    flow: "Flow"
    gains: list[Array]
    names: tuple[str, ...] = eqx.field(static=True)
    layout: Layout = eqx.field(static=True)

    def features(self) -> list[Array]:
        """What each use multiplies, for all rows; inside ``jit`` they become part of what needs them."""
        before, inputs = _rows(self.flow)
        found = jax.vmap(lambda z, x: _evaluate(self.flow.model, self.names, z, x, [])[1])
        return found(before, inputs)


def _rows(flow: "Flow") -> tuple[Array, Array]:
    before = flow.states_before.reshape(-1, flow.states.shape[2])
    return before, flow.inputs.reshape(len(before), -1)


# How a step uses its weights is a property of its program: models of one structure and shape share it. Every
# use of it is confirmed by numbers anew.
_LAYOUTS: dict[Any, Layout | None] = {}


def unit_structure(flow: "Flow", names: tuple[str, ...]) -> UnitStructure | None:
    """The factored form of K, or None where the cell is not unit-local or its step cannot be read."""
    arrays, static = eqx.partition(flow.model, eqx.is_array)
    leaves, treedef = jax.tree.flatten(static)
    sizes = tuple((leaf.shape, str(leaf.dtype)) for leaf in jax.tree.leaves(arrays))
    key = (names, treedef, tuple(leaves), sizes, flow.inputs.shape[2])
    try:
        layout = _LAYOUTS[key]
    except KeyError:
        layout = _LAYOUTS[key] = _find_layout(flow, names)
    except TypeError:  # a cell with a leaf that cannot be hashed
        layout = _find_layout(flow, names)
    if layout is None:
        return None
    gains = _gains(flow, names, layout)
    structure = UnitStructure(flow, [gains[u] for u in layout.same_as], names, layout)
    return structure if _is_confirmed(structure) else None


def _find_layout(flow: "Flow", names: tuple[str, ...]) -> Layout | None:
    try:
        uses = _uses(flow, names)
    except NoStructureError:
        return None
    if len({(use.name, use.is_flipped) for use in uses}) != len({use.name for use in uses}):
        return None  # a matrix and its transpose in one step: rows of one are columns of the other
    pattern = _pattern(flow, names, uses)
    if pattern is None:
        return None
    return _with_gains(flow, names, Layout(tuple(uses), *pattern, (), ()))


def _pattern(flow: "Flow", names: tuple[str, ...], uses: list[Use]) -> tuple[Any, Any] | None:
    """Which entry of e moves which unit, from full derivatives at a few generic points."""
    batch, time = flow.states.shape[:2]
    points = [((7 * n) % batch, (time - 1) - (5 * n) % time) for n in range(3)]
    states = np.concatenate([np.asarray(flow.initial_state)[:, None], np.asarray(flow.states)], axis=1)
    # A shift in all directions, different for every point: no component stays where it happens to vanish.
    shift = np.sin(1.0 + np.arange(3)[:, None] + 1.7 * np.arange(states.shape[2])[None, :])
    z = np.stack([states[point] for point in points]) + 0.3 * shift.astype(states.dtype)
    x = np.stack([np.asarray(flow.inputs)[point] for point in points])
    sensitive = np.asarray(_sensitivities(flow.model, names, tuple(uses), jnp.asarray(z), jnp.asarray(x)))
    rows, columns = np.nonzero(sensitive)
    size = sum(sensitive.shape)
    same_a, same_b = _same_rows(uses)
    edges = coo_array(
        (
            np.ones(len(rows) + len(same_a)),
            (
                np.concatenate([rows, same_a + len(sensitive)]),
                np.concatenate([columns, same_b]) + len(sensitive),
            ),
        ),
        shape=(size, size),
    )
    count, label = connected_components(edges, directed=False)
    state_label, use_label = label[: len(sensitive)], label[len(sensitive) :]
    moved = np.zeros(count, bool)
    moved[state_label[rows]] = True
    units = np.flatnonzero(moved)
    if len(units) < 2 or not np.all(moved[use_label]):
        return None
    rank = {int(unit): i for i, unit in enumerate(units)}
    members = [np.flatnonzero(state_label == unit) for unit in units]
    width = max(len(member) for member in members)
    index = tuple(tuple(int(i) for i in member) + (-1,) * (width - len(member)) for member in members)
    owner = [rank[int(label)] for label in use_label]
    unit_of, start = [], 0
    for use in uses:
        unit_of.append(tuple(owner[start : start + use.rows]))
        start += use.rows
    return tuple(unit_of), index


def _same_rows(uses: list[Use]) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of entries of e that belong to the same row of a leaf used twice."""
    starts = np.cumsum([0, *[use.rows for use in uses]])
    first: dict[str, int] = {}
    a, b = [np.zeros(0, int)], [np.zeros(0, int)]
    for start, use in zip(starts, uses, strict=False):
        if use.name in first:
            a.append(first[use.name] + np.arange(use.rows))
            b.append(start + np.arange(use.rows))
        first.setdefault(use.name, start)
    return np.concatenate(a), np.concatenate(b)


@eqx.filter_jit
def _sensitivities(
    model: Model, names: tuple[str, ...], uses: tuple[Use, ...], z: Array, x: Array
) -> Bool[Array, "hidden entries"]:
    """Which entries of e move which components, at any of some points."""

    def one(z, x):
        zeros = [jnp.zeros(use.rows, z.dtype) for use in uses]
        blocks = jax.jacrev(lambda eps: _evaluate(model, names, z, x, eps)[0])(zeros)
        return jnp.concatenate(blocks, axis=1)

    return jnp.any(jax.lax.map(lambda point: one(*point), (z, x)) != 0, axis=0)


def _gains_of_step(model: Model, names: tuple[str, ...], layout: Layout, z: Array, x: Array) -> list[Array]:
    """Gains of one step, (c, m_u) for every use: one backward pass per component of a unit."""
    index = np.array(layout.index)
    colors = np.zeros((index.shape[1], len(z)))
    for a in range(index.shape[1]):
        colors[a, index[index[:, a] >= 0, a]] = 1
    zeros = [jnp.zeros(use.rows, z.dtype) for use in layout.uses]
    pull = jax.vjp(lambda eps: _evaluate(model, names, z, x, eps)[0], zeros)[1]
    return jax.vmap(lambda color: pull(color)[0])(jnp.asarray(colors, z.dtype))


def _with_gains(flow: "Flow", names: tuple[str, ...], layout: Layout) -> Layout:
    """Note which uses have gains that are constant or those of another use, by the traced program."""
    closed = jax.make_jaxpr(lambda z, x: _gains_of_step(flow.model, names, layout, z, x))(
        flow.initial_state[0], flow.inputs[0, 0]
    )
    moving = set(closed.jaxpr.invars)
    for eqn in closed.jaxpr.eqns:
        if any(not isinstance(var, Literal) and var in moving for var in eqn.invars):
            moving |= set(eqn.outvars)
    outs = closed.jaxpr.outvars
    return dataclasses.replace(
        layout,
        is_constant=tuple(isinstance(var, Literal) or var not in moving for var in outs),
        same_as=tuple(next(v for v, other in enumerate(outs) if other is var) for var in outs),
    )


@eqx.filter_jit
def _gains(flow: "Flow", names: tuple[str, ...], layout: Layout) -> dict[int, Array]:
    """The gains of all rows, of the uses whose gains are their own."""
    gains = jax.vmap(lambda z, x: _gains_of_step(flow.model, names, layout, z, x))(*_rows(flow))
    kept = {u: gains[u][:1] if layout.is_constant[u] else gains[u] for u in set(layout.same_as)}
    return {u: jnp.swapaxes(gain, 1, 2) for u, gain in kept.items()}


# Trajectories on which the factored form was compared with the adjoint, by the identity of their array.
_CONFIRMED: dict[int, tuple[weakref.ref, dict[tuple[str, ...], bool]]] = {}


def _is_confirmed(structure: UnitStructure) -> bool:
    """Compare G* of the factored form with the matrix-free one on a random trajectory, once per flow."""
    flow, names = structure.flow, structure.names
    place = id(flow.states)
    if place not in _CONFIRMED:
        _CONFIRMED[place] = (weakref.ref(flow.states, lambda _: _CONFIRMED.pop(place, None)), {})
    known = _CONFIRMED[place][1]
    if names not in known:
        worst, size = _compare_adjoints(structure)
        eps = float(jnp.finfo(flow.states.dtype).eps)
        # Both are sums over the same rows in another order.
        bound = 100 * eps * np.sqrt(np.prod(flow.states.shape[:2])) * float(size)
        known[names] = bool(float(worst) <= bound)
    return known[names]


@eqx.filter_jit
def _compare_adjoints(structure: UnitStructure) -> tuple[Array, Array]:
    flow, names, features = structure.flow, structure.names, structure.features()
    q = jr.normal(jr.key(0), flow.states.shape, flow.states.dtype)
    theirs = jax.vjp(
        lambda p: flow.rows(flow.states_before, p), {name: flow.model.params[name] for name in names}
    )[1](flow.weights[:, None, None] * q)[0]
    flat = (flow.weights[:, None, None] * q).reshape(-1, q.shape[2])
    index = jnp.asarray(structure.layout.index)
    padded = jnp.concatenate([flat, jnp.zeros_like(flat[:, :1])], axis=1)
    ours = {name: jnp.zeros_like(leaf) for name, leaf in theirs.items()}
    for u, use in enumerate(structure.layout.uses):
        local = padded[
            :, index[jnp.asarray(structure.layout.unit_of[u])]
        ]  # index -1 reads the zero at the end
        e = jnp.sum(structure.gains[u] * local, axis=2)
        if use.is_vector:
            ours[use.name] += jnp.sum(e, axis=0)
        else:
            product = e.T @ features[u]
            ours[use.name] += product.T if use.is_flipped else product
    worst = [largest(theirs[name] - ours[name]) for name in names]
    return jnp.max(jnp.stack(worst)), jnp.max(jnp.stack([largest(theirs[name]) for name in names]))
