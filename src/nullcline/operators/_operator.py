r"""Linear operators on trajectories: action, adjoint, composition, and what is known about their signs.

Trajectories q, r of shape (batch, time, hidden) have the inner product
:math:`\langle q, r\rangle = \sum_b w_b \sum_t \sum_i q_{bti} r_{bti}` (hazelden2025, under (7), with
the weights of the erratum to (75)); adjoints, norms and spectra are those of this product. Operators are
pytrees: pass them through ``jit`` as arguments.
"""

import abc
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._checks import is_concrete

DENSE_LIMIT = 5000
"""Largest side of a matrix that is formed without being asked for."""


def check_values(operator: "AbstractOperator", name: str) -> None:
    """Refuse an operator that is being traced, where the method depends on its values."""
    if not is_concrete(operator.out_space.origin):
        raise ValueError(
            f"`{name}` looks at values and cannot run under `jit`, `vmap` or `grad`. Call it outside, or use "
            "`consensus(operator, over).values`, which can."
        )


def check_finite(values: Any, dtype: Any) -> None:
    """Refuse a spectrum that has overflown, as that of P along unstable trajectories does."""
    if is_concrete(values) and not np.all(np.isfinite(np.asarray(values))):
        raise ValueError(
            f"The spectrum leaves the range of {dtype}: trajectories are so unstable that squares of values "
            "overflow. Take fewer steps, or float64 instead of float32; `lyapunov` sums logarithms and has "
            "no such limit."
        )


def is_printable(array: Any, ndim: int) -> bool:
    """Whether a repr can show its values: neither traced, nor batched, nor replaced by something else."""
    return eqx.is_array(array) and is_concrete(array) and array.ndim == ndim


class Space(eqx.Module):
    """Arrays of one shape with a weight per trial; ``origin`` and ``trials`` tell models and subsets apart.

    For parameters, ``shapes`` lists the leaves by name and the product is the plain one.
    """

    weights: Array | None
    origin: Array
    trials: Array | None
    kind: str = eqx.field(static=True)
    shape: tuple[int, ...] = eqx.field(static=True)
    shapes: tuple[tuple[str, tuple[int, ...]], ...] = eqx.field(static=True, default=())

    @property
    def size(self) -> int:
        """Dimension of the space."""
        if self.kind == "parameters":
            return sum(math.prod(shape) for _, shape in self.shapes)
        return math.prod(self.shape)

    @property
    def dtype(self):
        """Floating-point type of the elements."""
        return self.origin.dtype

    def inner(self, q: Any, r: Any) -> Array:
        """Inner product of two elements."""
        if self.weights is None:
            pairs = zip(jax.tree.leaves(q), jax.tree.leaves(r), strict=True)
            return jnp.sum(jnp.stack([jnp.sum(a * b) for a, b in pairs]))
        return jnp.sum(self.weights * jnp.sum(q * r, axis=(1, 2)))

    def to_vector(self, q: Any) -> Array:
        """Coordinates in which the inner product is the Euclidean one."""
        if self.weights is None:
            return jnp.concatenate([jnp.ravel(q[name]) for name, _ in self.shapes])
        return (jnp.sqrt(self.weights)[:, None, None] * q).reshape(-1)

    def from_vector(self, v: Array) -> Any:
        """The element with these coordinates; trials of weight zero stay zero."""
        if self.weights is None:
            out, start = {}, 0
            for name, shape in self.shapes:
                out[name] = v[start : start + math.prod(shape)].reshape(shape)
                start += math.prod(shape)
            return out
        root = jnp.sqrt(self.weights)
        scale = jnp.where(root > 0, 1 / jnp.where(root > 0, root, 1), 0)
        return scale[:, None, None] * v.reshape(self.shape)

    def check(self, q: Any, what: str) -> None:
        """Refuse an element of another shape."""
        if self.kind == "parameters":
            got = (
                {name: jnp.shape(leaf) for name, leaf in q.items()}
                if isinstance(q, dict)
                else type(q).__name__
            )
            if got != dict(self.shapes):
                raise ValueError(f"{what} takes parameters {dict(self.shapes)}, got {got}.")
        elif not hasattr(q, "shape") or tuple(q.shape) != self.shape:
            axes = "(batch, time, outputs)" if self.kind == "outputs" else "(batch, time, hidden)"
            got = tuple(q.shape) if hasattr(q, "shape") else type(q).__name__
            raise ValueError(f"{what} acts on arrays of shape {axes} = {self.shape}, got {got}.")


def check_same_space(left: Space, right: Space, verb: str) -> None:
    """Refuse to combine operators on different spaces, or of different models."""
    if (left.kind, left.shape, left.shapes) != (right.kind, right.shape, right.shapes):
        raise ValueError(
            f"Cannot {verb} these operators: one acts on {left.kind} of shape "
            f"{left.shape or dict(left.shapes)}, the "
            f"other gives {right.kind} of shape {right.shape or dict(right.shapes)}."
        )
    if not is_concrete(left.origin, right.origin, left.trials, right.trials):
        return
    same_trials = (left.trials is None) == (right.trials is None) and (
        left.trials is None or np.array_equal(left.trials, np.asarray(right.trials))
    )
    if left.origin is not right.origin:
        raise ValueError(
            f"Cannot {verb} these operators: they belong to different models or trajectories. Take all of "
            "them from "
            "one `linearize` call."
        )
    if not same_trials:
        raise ValueError(
            f"Cannot {verb} these operators: they act on different trials, {_few(left.trials)} and "
            f"{_few(right.trials)}."
        )


def _few(trials: Array | None) -> str:
    return "all" if trials is None else np.array2string(np.asarray(trials), threshold=8)


class AbstractOperator(eqx.Module):
    """A linear map between two spaces of trajectories.

    ``A @ q`` applies it, ``A @ B`` composes, ``A.T`` is the adjoint for the weighted inner product; sums and
    multiples work as for matrices. ``is_psd`` says that the operator is known to be self-adjoint and positive
    semi-definite: it is known from the construction, never tested.
    """

    @property
    @abc.abstractmethod
    def in_space(self) -> Space:
        """Where the arguments live."""

    @property
    @abc.abstractmethod
    def out_space(self) -> Space:
        """Where the results live."""

    @property
    @abc.abstractmethod
    def is_psd(self) -> bool:
        """Whether the operator is known to be self-adjoint and positive semi-definite."""

    @abc.abstractmethod
    def mv(self, q: Any) -> Any:
        """Apply, without checks; for use inside ``jit``."""

    @abc.abstractmethod
    def rmv(self, r: Any) -> Any:
        """Apply the adjoint, without checks."""

    @property
    def T(self) -> "AbstractOperator":  # noqa: N802
        """The adjoint for the weighted inner product."""
        if self.is_psd:
            return self
        return self.operator if isinstance(self, Adjoint) else Adjoint(self)

    def __matmul__(self, other: Any) -> Any:
        if isinstance(other, AbstractOperator):
            return compose(self, other)
        self.in_space.check(other, type(self).__name__)
        return _apply(self, other)

    def __add__(self, other: Any) -> "AbstractOperator":
        if isinstance(other, int) and other == 0:  # so that `sum` works
            return self
        if not isinstance(other, AbstractOperator):
            return NotImplemented
        check_same_space(self.in_space, other.in_space, "add")
        check_same_space(self.out_space, other.out_space, "add")
        return Sum((self, other))

    __radd__ = __add__

    def __sub__(self, other: "AbstractOperator") -> "AbstractOperator":
        return self + (-1.0) * other

    def __neg__(self) -> "AbstractOperator":
        return (-1.0) * self

    def __mul__(self, factor: int | float) -> "AbstractOperator":
        return Scaled(self, float(factor))

    __rmul__ = __mul__

    def dense(self) -> Float[Array, "rows columns"]:
        """The matrix of the operator on flattened arrays, column by column.

        Refused beyond 5000 rows or columns. With unequal trial weights a self-adjoint operator has no
        symmetric matrix.
        """
        check_dense(self)
        return _dense(self, False)

    def whitened(self) -> Float[Array, "rows columns"]:
        """The matrix in coordinates where the inner product is the Euclidean one."""
        check_dense(self)
        return _dense(self, True)


def check_dense(operator: AbstractOperator) -> None:
    """Refuse to form a large matrix."""
    side = max(operator.in_space.size, operator.out_space.size)
    if side > DENSE_LIMIT:
        raise ValueError(
            f"A dense matrix of side {side} is beyond the limit of {DENSE_LIMIT}. Apply the operator with "
            "`@`, or use "
            "`spectrum(operator, k=..., key=...)` and `effective_rank(operator, key=...)`, which need no "
            "matrix."
        )


class Adjoint(AbstractOperator):
    """The adjoint of an operator."""

    operator: AbstractOperator

    @property
    def in_space(self) -> Space:
        """Where the arguments live."""
        return self.operator.out_space

    @property
    def out_space(self) -> Space:
        """Where the results live."""
        return self.operator.in_space

    @property
    def is_psd(self) -> bool:
        """An adjoint is formed only where it differs from the operator."""
        return False

    def mv(self, q: Any) -> Any:
        """Apply the adjoint."""
        return self.operator.rmv(q)

    def rmv(self, r: Any) -> Any:
        """Apply the operator itself."""
        return self.operator.mv(r)


class Product(AbstractOperator):
    """A chain of operators, applied from the right."""

    factors: tuple[AbstractOperator, ...]
    # Decided where the factors are still the same Python objects: inside `jit` each copy has its own tracers.
    psd: bool = eqx.field(static=True)

    @property
    def in_space(self) -> Space:
        """Where the arguments live."""
        return self.factors[-1].in_space

    @property
    def out_space(self) -> Space:
        """Where the results live."""
        return self.factors[0].out_space

    @property
    def is_psd(self) -> bool:
        """Whether the chain reads W A W* with A positive semi-definite or absent."""
        return self.psd

    def mv(self, q: Any) -> Any:
        """Apply the factors from the right."""
        for factor in reversed(self.factors):
            q = factor.mv(q)
        return q

    def rmv(self, r: Any) -> Any:
        """Apply the adjoint factors from the left."""
        for factor in self.factors:
            r = factor.rmv(r)
        return r


class Sum(AbstractOperator):
    """A sum of operators."""

    parts: tuple[AbstractOperator, ...]

    @property
    def in_space(self) -> Space:
        """Where the arguments live."""
        return self.parts[0].in_space

    @property
    def out_space(self) -> Space:
        """Where the results live."""
        return self.parts[0].out_space

    @property
    def is_psd(self) -> bool:
        """A sum of positive semi-definite operators is one."""
        return all(part.is_psd for part in self.parts)

    def mv(self, q: Any) -> Any:
        """Add up the results."""
        return jax.tree.map(lambda *terms: sum(terms[1:], terms[0]), *[part.mv(q) for part in self.parts])

    def rmv(self, r: Any) -> Any:
        """Add up the adjoint results."""
        return jax.tree.map(lambda *terms: sum(terms[1:], terms[0]), *[part.rmv(r) for part in self.parts])


class Scaled(AbstractOperator):
    """A real multiple of an operator."""

    operator: AbstractOperator
    factor: int | float = eqx.field(static=True)

    @property
    def in_space(self) -> Space:
        """Where the arguments live."""
        return self.operator.in_space

    @property
    def out_space(self) -> Space:
        """Where the results live."""
        return self.operator.out_space

    @property
    def is_psd(self) -> bool:
        """A nonnegative multiple keeps the sign."""
        return self.operator.is_psd and self.factor >= 0

    def mv(self, q: Any) -> Any:
        """Apply and scale."""
        return jax.tree.map(lambda leaf: self.factor * leaf, self.operator.mv(q))

    def rmv(self, r: Any) -> Any:
        """Apply the adjoint and scale."""
        return jax.tree.map(lambda leaf: self.factor * leaf, self.operator.rmv(r))


def compose(left: AbstractOperator, right: AbstractOperator) -> Product:
    """Chain two operators and record whether the result is W A W*."""
    check_same_space(left.in_space, right.out_space, "compose")
    factors = (left.factors if isinstance(left, Product) else (left,)) + (
        right.factors if isinstance(right, Product) else (right,)
    )
    return Product(factors, _is_congruence(factors))


def _is_congruence(factors: tuple[AbstractOperator, ...]) -> bool:
    half, has_middle = divmod(len(factors), 2)
    if has_middle and not factors[half].is_psd:
        return False
    return all(_are_adjoint(factors[i], factors[-1 - i]) for i in range(half))


def _are_adjoint(a: AbstractOperator, b: AbstractOperator) -> bool:
    if isinstance(a, Adjoint):
        return is_same(a.operator, b)
    if isinstance(b, Adjoint):
        return is_same(a, b.operator)
    return a.is_psd and is_same(a, b)


def is_same(a: AbstractOperator, b: AbstractOperator) -> bool:
    """Whether two operators are made of the very same arrays."""
    if a is b:
        return True
    leaves_a, tree_a = jax.tree.flatten(a)
    leaves_b, tree_b = jax.tree.flatten(b)
    return tree_a == tree_b and all(x is y for x, y in zip(leaves_a, leaves_b, strict=True))


def square_root(operator: AbstractOperator) -> AbstractOperator | None:
    """An operator F with F F* = ``operator``, where the construction shows one."""
    if isinstance(operator, Product) and operator.psd:
        half, has_middle = divmod(len(operator.factors), 2)
        left = list(operator.factors[:half])
        if has_middle:
            middle = square_root(operator.factors[half])
            if middle is None:
                return None
            left.append(middle)
        return left[0] if len(left) == 1 else Product(tuple(left), False)
    if isinstance(operator, Scaled) and operator.is_psd:
        root = square_root(operator.operator)
        return None if root is None else Scaled(root, math.sqrt(operator.factor))
    factor = getattr(operator, "square_root", None)
    return None if factor is None else factor()


def whitened_mv(operator: AbstractOperator, v: Array) -> Array:
    """Apply in Euclidean coordinates."""
    return operator.out_space.to_vector(operator.mv(operator.in_space.from_vector(v)))


def whitened_rmv(operator: AbstractOperator, v: Array) -> Array:
    """Apply the adjoint in Euclidean coordinates."""
    return operator.in_space.to_vector(operator.rmv(operator.out_space.from_vector(v)))


@eqx.filter_jit
def _apply(operator: AbstractOperator, q: Any) -> Any:
    return operator.mv(q)


@eqx.filter_jit
def _dense(operator: AbstractOperator, is_white: bool) -> Array:
    space, out = operator.in_space, operator.out_space

    def column(v):
        if is_white:
            return whitened_mv(operator, v)
        if space.kind == "parameters":
            return jnp.ravel(operator.mv(space.from_vector(v)))
        return jnp.concatenate(
            [jnp.ravel(leaf) for leaf in jax.tree.leaves(operator.mv(v.reshape(space.shape)))]
        )

    # Batches keep the memory at a few hundred trajectories.
    eye = jnp.eye(space.size, dtype=out.dtype)
    return jax.lax.map(column, eye, batch_size=min(256, space.size)).T
