"""Kernels and thin factors of K for unit-local cells, from the factored form of the step."""

from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ._operator import is_concrete
from ._structure import Layout, Members, UnitStructure, unit_structure
from ._symmetric import eigenvalues, gram_of_smaller_side

if TYPE_CHECKING:
    from ._parameter import ParameterOperator


_BLOCKS = 6
"""Blocks of rows in which the symmetric kernel is formed."""


class Group(eqx.Module):
    """Uses that add up before they are squared: those of one leaf, or leaves that share their gains."""

    features: list[Array]
    gains: list[Array]
    members: Members = eqx.field(static=True)


class Factored(eqx.Module):
    """K in factored form: rows are (batch, time), ``weights`` their trial weights.

    ``is_uniform`` says that all units have the same kernel, so that every eigenvalue comes once per unit.
    """

    groups: list[Group]
    weights: Array
    layout: Layout = eqx.field(static=True)
    shape: tuple[int, ...] = eqx.field(static=True)
    is_uniform: bool = eqx.field(static=True)

    @property
    def units(self) -> int:
        """Number of units that own parameters."""
        return len(self.layout.index)


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
    groups = _groups(structure, scale)
    weights = jnp.asarray(np.repeat(np.asarray(flow.weights), flow.states.shape[1]))
    is_uniform = all(_is_uniform(group) for group in groups)
    return Factored(groups, weights, structure.layout, flow.states.shape, is_uniform)


def _groups(structure: UnitStructure, scale: dict[str, float]) -> list[Group]:
    by_leaf: dict[str, list[int]] = {}
    for u, use in enumerate(structure.layout.uses):
        by_leaf.setdefault(use.name, []).append(u)
    groups: list[Group] = []
    for name, uses in by_leaf.items():
        features = [structure.features[u] for u in uses]
        if scale[name] != 1:
            features = [np.sqrt(scale[name]) * feature for feature in features]
        gains = [structure.gains[u] for u in uses]
        members = structure.layout.members[uses[0]]
        twin = next((g for g in groups if len(uses) == 1 and _shares_gains(g, gains[0], members)), None)
        if twin is None:
            groups.append(Group(features, gains, members))
        else:
            stacked = jnp.concatenate([twin.features[0], features[0]], axis=1)
            groups[groups.index(twin)] = Group([stacked], twin.gains, members)
    return groups


def _shares_gains(group: Group, gains: Array, members: Members) -> bool:
    return (
        len(group.gains) == 1
        and group.members == members
        and group.gains[0].shape == gains.shape
        and np.array_equal(np.asarray(group.gains[0])[:1], np.asarray(gains)[:1])  # most differ here already
        and np.array_equal(np.asarray(group.gains[0]), np.asarray(gains))
    )


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


@eqx.filter_jit
def kernel(form: Factored) -> Array:
    r"""The kernel over (trial, time), :math:`k = Tr_{hidden}(K)/S`, in Euclidean coordinates."""
    root = jnp.sqrt(form.weights / form.shape[2])
    rows = len(root)
    starts = range(0, rows, -(-rows // (_BLOCKS if rows > 64 * _BLOCKS else 1)))
    size = starts.step
    # A symmetric matrix: the blocks below the diagonal are those above it.
    blocks = {}
    for i in starts:
        for j in range(i, rows, size):
            left, right = slice(i, i + size), slice(j, j + size)
            block = jnp.zeros((len(root[left]), len(root[right])), root.dtype)
            for group in form.groups:
                flat = [gain.reshape(len(gain), -1) for gain in group.gains]
                for s_u, d_u in zip(group.features, flat, strict=True):
                    for s_v, d_v in zip(group.features, flat, strict=True):
                        block = block + (s_u[left] @ s_v[right].T) * (_part(d_u, left) @ _part(d_v, right).T)
            blocks[i, j] = root[left, None] * block * root[None, right]
    return jnp.block([[blocks[i, j] if i <= j else blocks[j, i].T for j in starts] for i in starts])


def _part(gains: Array, rows: slice) -> Array:
    return gains if len(gains) == 1 else gains[rows]


@eqx.filter_jit
def kernel_factor(form: Factored) -> Array:
    """A thin factor F of the kernel, k = F F^T, for uniform units."""
    assert form.is_uniform
    return jnp.sqrt(form.units / form.shape[2]) * unit_factor(form, jnp.array(0)).reshape(
        len(form.weights), -1
    )


def unit_factor(form: Factored, unit: Array) -> Array:
    """Rows (batch, time) of one unit's thin factor: (rows, components, width)."""
    blocks = []
    for group in form.groups:
        members = jnp.asarray(group.members.rows)[unit]
        block = jnp.zeros((), form.weights.dtype)
        for s, d in zip(group.features, group.gains, strict=True):
            mine = jnp.where((members >= 0)[None, :, None], d[:, members], 0)
            block = _add(block, mine, s)
        blocks.append(block.reshape(*block.shape[:2], -1))
    return jnp.sqrt(form.weights)[:, None, None] * jnp.concatenate(blocks, axis=2)


def _add(block: Array, gains: Array, features: Array) -> Array:
    term = jnp.swapaxes(gains, 1, 2)[:, :, :, None] * features[:, None, None, :]
    return term if block.ndim == 0 else block + term


@eqx.filter_jit
def trace(form: Factored) -> Array:
    """Trace of K, exactly."""
    total = jnp.zeros((), form.weights.dtype)
    for group in form.groups:
        for s_u, d_u in zip(group.features, group.gains, strict=True):
            for s_v, d_v in zip(group.features, group.gains, strict=True):
                total += jnp.sum(form.weights * jnp.sum(s_u * s_v, axis=1) * jnp.sum(d_u * d_v, axis=(1, 2)))
    return total


def unit_eigenvalues(form: Factored) -> np.ndarray:
    """Nonzero eigenvalues of K, one row per unit (one row in all for uniform units), ascending."""
    units = range(1 if form.is_uniform else form.units)
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
        vector = vector / jnp.linalg.norm(vector)
        out = jnp.zeros((rows, form.shape[2] + 1), vector.dtype)
        return out.at[:, index[unit]].set(vector.reshape(rows, components))[:, :-1]

    return jax.lax.map(one, (units, ranks))
