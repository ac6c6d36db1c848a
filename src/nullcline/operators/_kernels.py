"""Kernels and thin factors of K for unit-local cells, from the factored form of the step."""

import functools
import itertools
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._checks import is_concrete
from ._structure import Layout, Members, UnitStructure, unit_structure
from ._symmetric import eigenvalues, gram_of_smaller_side, is_on_host

if TYPE_CHECKING:
    from ._parameter import ParameterOperator


_BLOCKS = 6
"""Blocks of rows in which the symmetric kernel is formed."""


class Group(eqx.Module):
    """Uses that add up before they are squared: those of one leaf, or leaves that share their gains.

    ``features[u]`` says which features of the factored form stand side by side in use u.
    """

    gains: list[Array | np.ndarray]
    features: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    members: Members = eqx.field(static=True)


class Factored(eqx.Module):
    """K in factored form, over rows (batch, time).

    Each entry of ``entries`` lists uses whose leaves have the same gains; ``scales`` are the roots of the
    preconditioner, one per use. ``is_uniform`` says that all units have the same kernel, so that every
    eigenvalue comes once per unit.
    """

    structure: UnitStructure
    groups: list[Group]
    scales: list[np.ndarray] | None
    entries: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    is_uniform: bool = eqx.field(static=True)

    @property
    def layout(self) -> Layout:
        """How the units own the weights."""
        return self.structure.layout

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape (batch, time, hidden) of the trajectories."""
        return self.structure.flow.states.shape

    @property
    def units(self) -> int:
        """Number of units that own parameters."""
        return len(self.layout.index)

    def row_weights(self) -> Array:
        """Trial weight of each row."""
        return jnp.repeat(self.structure.flow.weights, self.shape[1])

    def features(self) -> list[Array]:
        """Features of each entry, side by side."""
        found = self.structure.features()
        if self.scales is not None:
            found = [scale * feature for scale, feature in zip(self.scales, found, strict=True)]
        return [jnp.concatenate([found[u] for u in entry], axis=1) for entry in self.entries]

    def summands(self) -> list[list[tuple[Array, Any]]]:
        """Features and gains of each use of each group."""
        features = self.features()
        return [
            [
                (jnp.concatenate([features[f] for f in use], axis=1), gains)
                for use, gains in zip(group.features, group.gains, strict=True)
            ]
            for group in self.groups
        ]


def factored(operator: "ParameterOperator") -> Factored | None:
    """The factored form of K, or None where the cell does not allow it."""
    flow = operator.left.flow
    if operator.is_block or not is_concrete(flow):
        return None
    structure = unit_structure(flow, operator.left.names)
    if structure is None:
        return None
    scale = {name: 1.0 for name in operator.left.names}
    if operator.scale is not None:
        for name, leaf in operator.scale.items():
            values = np.asarray(leaf)
            if values.size and np.ptp(values) != 0:
                return None  # a different rate for every entry of a weight is no Khatri-Rao product
            scale[name] = float(values.flat[0])
    entries, groups = _groups(structure)
    scales = None
    if any(factor != 1 for factor in scale.values()):
        scales = [np.asarray(np.sqrt(scale[use.name]), flow.states.dtype) for use in structure.layout.uses]
    is_uniform = all(_is_uniform(group) for group in groups)
    return Factored(structure, groups, scales, entries, is_uniform)


def _groups(structure: UnitStructure) -> tuple[tuple[tuple[int, ...], ...], list[Group]]:
    by_leaf: dict[str, list[int]] = {}
    for u, use in enumerate(structure.layout.uses):
        by_leaf.setdefault(use.name, []).append(u)
    entries: list[list[int]] = []
    groups: list[Group] = []
    for uses in by_leaf.values():
        gains = [structure.gains[u] for u in uses]
        members = structure.layout.members[uses[0]]
        twin = next((g for g in groups if len(uses) == 1 and _shares_gains(g, gains[0], members)), None)
        if twin is None:
            groups.append(Group([*gains], tuple((len(entries) + i,) for i in range(len(uses))), members))
            entries.extend([u] for u in uses)
        else:
            entries[twin.features[0][0]].extend(uses)
    return tuple(map(tuple, entries)), _split(groups)


def _shares_gains(group: Group, gains: Array, members: Members) -> bool:
    return (
        len(group.gains) == 1
        and group.members == members
        and (group.gains[0] is gains or _are_equal(np.asarray(group.gains[0]), np.asarray(gains)))
    )


def _are_equal(left: np.ndarray, right: np.ndarray) -> bool:
    # Most that differ do so in the first row.
    return np.array_equal(left[:1], right[:1]) and np.array_equal(left, right)


def _split(groups: list[Group]) -> list[Group]:
    """Take out the gains that two leaves share, such as those of the gates of a GRU, to square them once."""
    for i, j in itertools.combinations(range(len(groups)), 2):
        a, b = groups[i], groups[j]
        if len(a.gains) > 1 or len(b.gains) > 1 or a.members != b.members:
            continue
        is_shared = _equal_columns(a.gains[0], b.gains[0])
        if np.any(is_shared):
            others = [group for k, group in enumerate(groups) if k not in (i, j)]
            both = (a.features[0] + b.features[0],)
            return others + [
                Group([_columns(gains, mask)], places, _some_members(a.members, tuple(mask.tolist())))
                for gains, places, mask in (
                    (a.gains[0], both, is_shared),
                    (a.gains[0], a.features, ~is_shared),
                    (b.gains[0], b.features, ~is_shared),
                )
            ]
    return groups


def _equal_columns(left: Any, right: Any) -> np.ndarray:
    """Which entries have the same gains in all rows; most that differ do so in the first."""
    if left.shape != right.shape:
        return np.zeros(left.shape[1], bool)
    candidates = np.all(np.asarray(left)[0] == np.asarray(right)[0], axis=1)
    if np.any(candidates) and not np.array_equal(_columns(left, candidates), _columns(right, candidates)):
        candidates = np.all(np.asarray(left) == np.asarray(right), axis=(0, 2))
    return candidates


def _columns(gains: Any, mask: np.ndarray) -> Any:
    """The chosen columns, without a copy where they are neighbors in the memory of the CPU."""
    places = np.flatnonzero(mask)
    is_run = places[-1] - places[0] == len(places) - 1
    chosen = slice(int(places[0]), int(places[-1]) + 1) if is_run else places
    return (np.asarray(gains) if is_on_host(gains) else gains)[:, chosen]


@functools.lru_cache(maxsize=64)
def _some_members(members: Members, mask: tuple[bool, ...]) -> Members:
    """Entries owned by each unit, counted among the chosen ones."""
    place = np.cumsum(mask) - 1
    kept = [[int(place[m]) for m in row if m >= 0 and mask[m]] for row in members.rows]
    width = max(len(row) for row in kept)
    return Members(tuple(tuple(row) + (-1,) * (width - len(row)) for row in kept))


def _is_uniform(group: Group) -> bool:
    members = np.asarray(group.members.rows)
    if members.min() < 0:
        return False
    gains = [np.asarray(gain) for gain in group.gains]
    # Most that differ do so in the first row.
    return all(
        np.ptp(part[:, members], axis=1).max() == 0
        for gain in gains
        for part in (gain[:1], gain[1:])
        if len(part)
    )


def kernel(form: Factored) -> Array:
    r"""The kernel over (trial, time), :math:`k = Tr_{hidden}(K)/S`, in Euclidean coordinates."""
    if not is_on_host(form.structure.flow.states):
        return _compiled_kernel(form)
    features = [np.asarray(feature) for feature in _scaled_features(form)]
    return jnp.asarray(_kernel(jax.tree.map(np.asarray, form.groups), features, np))


@eqx.filter_jit
def _scaled_features(form: Factored) -> list[Array]:
    root = jnp.sqrt(form.row_weights() / form.shape[2])[:, None]
    return [root * feature for feature in form.features()]


@eqx.filter_jit
def _compiled_kernel(form: Factored) -> Array:
    return _kernel(form.groups, _scaled_features(form), jnp)


def _kernel(groups: list[Group], features: list[Any], xp: Any) -> Any:
    flat = [[gain.reshape(len(gain), -1) for gain in group.gains] for group in groups]
    rows = len(features[0])
    starts = range(0, rows, -(-rows // (_BLOCKS if rows > 64 * _BLOCKS else 1)))
    blocks = {}
    # A symmetric matrix: the blocks below the diagonal are those above it.
    for i in starts:
        for j in range(i, rows, starts.step):
            left, right = slice(i, i + starts.step), slice(j, j + starts.step)
            products = {}
            terms = []
            for group, gains in zip(groups, flat, strict=True):
                for use_u, d_u in zip(group.features, gains, strict=True):
                    for use_v, d_v in zip(group.features, gains, strict=True):
                        pairs = list(zip(use_u, use_v, strict=True))
                        for u, v in pairs:
                            if (u, v) not in products:
                                products[u, v] = features[u][left] @ features[v][right].T
                        inner = sum((products[pair] for pair in pairs[1:]), products[pairs[0]])
                        terms.append(inner * (_part(d_u, left) @ _part(d_v, right).T))
            blocks[i, j] = sum(terms[1:], terms[0])
    return xp.block([[blocks[i, j] if i <= j else blocks[j, i].T for j in starts] for i in starts])


def _part(gains: Any, rows: slice) -> Any:
    return gains if len(gains) == 1 else gains[rows]


@eqx.filter_jit
def kernel_factor(form: Factored) -> Array:
    """A thin factor F of the kernel, k = F F^T, for uniform units."""
    assert form.is_uniform
    rows = form.shape[0] * form.shape[1]
    return jnp.sqrt(form.units / form.shape[2]) * unit_factor(form, jnp.array(0)).reshape(rows, -1)


def unit_factor(form: Factored, unit: Array) -> Array:
    """Rows (batch, time) of one unit's thin factor: (rows, components, width)."""
    blocks = []
    for group, summands in zip(form.groups, form.summands(), strict=True):
        members = jnp.asarray(group.members.rows)[unit]
        block = jnp.zeros((), form.structure.flow.states.dtype)
        for s, d in summands:
            mine = jnp.where((members >= 0)[None, :, None], d[:, members], 0)
            block = _add(block, mine, s)
        blocks.append(block.reshape(*block.shape[:2], -1))
    return jnp.sqrt(form.row_weights())[:, None, None] * jnp.concatenate(blocks, axis=2)


def _add(block: Array, gains: Any, features: Array) -> Array:
    term = jnp.swapaxes(gains, 1, 2)[:, :, :, None] * features[:, None, None, :]
    return term if block.ndim == 0 else block + term


@eqx.filter_jit
def trace(form: Factored) -> Array:
    """Trace of K, exactly."""
    weights = form.row_weights()
    total = jnp.zeros((), weights.dtype)
    for summands in form.summands():
        for s_u, d_u in summands:
            for s_v, d_v in summands:
                total += jnp.sum(weights * jnp.sum(s_u * s_v, axis=1) * jnp.sum(d_u * d_v, axis=(1, 2)))
    return total


def unit_eigenvalues(form: Factored) -> np.ndarray:
    """Nonzero eigenvalues of K, one row per unit (one row in all for uniform units), ascending."""
    units = range(1 if form.is_uniform else form.units)
    form = jax.tree.map(jnp.asarray, form)  # once, not for every unit
    return np.stack(
        [eigenvalues(gram_of_smaller_side(_flat_factor(form, jnp.array(unit)))) for unit in units]
    )


@eqx.filter_jit
def _flat_factor(form: Factored, unit: Array) -> Array:
    factor = unit_factor(form, unit)
    return factor.reshape(-1, factor.shape[2])


@eqx.filter_jit
def unit_modes(form: Factored, units: Array, ranks: Array) -> Array:
    """Modes of K: for each pair (unit, rank from the top) a unit vector, (modes, batch * time, hidden)."""
    index = jnp.asarray(form.layout.index)

    def one(pair):
        unit, rank = pair
        factor = unit_factor(form, unit)
        rows, components, width = factor.shape
        flat = factor.reshape(-1, width)
        vectors = jnp.linalg.eigh(gram_of_smaller_side(flat))[1]
        vector = vectors[:, vectors.shape[1] - 1 - rank]
        vector = vector if flat.shape[0] <= flat.shape[1] else flat @ vector
        norm = jnp.linalg.norm(vector)
        vector = vector / jnp.where(norm > 0, norm, 1)  # a unit at rest has no modes
        out = jnp.zeros((rows, form.shape[2] + 1), vector.dtype)
        return out.at[:, index[unit]].set(vector.reshape(rows, components))[:, :-1]

    return jax.lax.map(one, (units, ranks))
