"""Effective ranks of the true total: exact up to the dense limit, with an error bar beyond."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from .._checks import require_integer
from . import _kernels
from ._consensus import Consensus
from ._krylov import expand
from ._operator import AbstractOperator, check_values, is_printable, square_root, whitened_mv, whitened_rmv
from ._parameter import ParameterOperator
from ._spectrum import Spectrum, whole_spectrum


class EffectiveRank(eqx.Module):
    """How many modes hold a share of the total.

    Attributes
    ----------
    rank
        The number: whole if exact, fractional if interpolated or estimated.
    standard_error
        Of an estimate; zero if exact, NaN (not known) for a consensus that was itself estimated by probes.
    total
        The true total: sum of ``values**power`` over the whole spectrum, exact or estimated.
    power, fraction
        The convention: share of the sum of which power of the values.
    kind
        What the values are: ``"eigenvalues"`` or ``"singular values"``.
    method
        How they were obtained: as in :class:`Spectrum`, ``"values"``, or ``"quadrature"`` for an estimate.
    """

    rank: Float[Array, ""]
    standard_error: Float[Array, ""]
    total: Float[Array, ""]
    power: int | float = eqx.field(static=True)
    fraction: int | float = eqx.field(static=True)
    kind: str = eqx.field(static=True)
    method: str = eqx.field(static=True)

    @property
    def is_exact(self) -> bool:
        """Whether no sampling went into it."""
        return self.method not in ("quadrature", "probes")

    def __float__(self) -> float:
        return float(self.rank)

    def __repr__(self) -> str:
        if not is_printable(self.rank, 0):
            return eqx.tree_pformat(vars(self))
        error = "" if self.is_exact else f" ± {float(self.standard_error):.2g}"
        return (
            f"EffectiveRank({float(self.rank):g}{error}, fraction={self.fraction}, power={self.power:g}, "
            f"total={float(self.total):.6g}, kind={self.kind!r}, method={self.method!r})"
        )


def effective_rank(
    operator: AbstractOperator | Spectrum | Consensus | Float[Array, "..."],
    fraction: int | float = 0.95,
    power: int | float | None = None,
    *,
    total: int | float | None = None,
    interpolate: bool = False,
    method: str = "auto",
    probes: int = 6,
    steps: int = 40,
    key: PRNGKeyArray | None = None,
) -> EffectiveRank:
    r"""Smallest number of modes whose :math:`v^{power}` make up ``fraction`` of the true total.

    Parameters
    ----------
    operator
        An operator, its :func:`spectrum`, a :func:`consensus`, or an array of values.
    fraction
        Share to reach, in (0, 1].
    power
        For positive semi-definite operators 1 (eigenvalues: variances of activity modes, what Theorem 1 of
        hazelden2025 needs; the default) or 2 (their squares, what its figures show): the two differ by an
        order of magnitude. For others 2, squared singular values, by default.
    total
        Sum of ``values**power`` over the whole spectrum, where an array or a spectrum holds only some
        values. An array without it counts as the whole spectrum.
    interpolate
        The fractional version, :math:`k - 1 + (f - c_{k-1})/(c_k - c_{k-1})`; it can be below 1.
    method
        ``"auto"``: exact where :func:`spectrum` can be, else an estimate. ``"quadrature"``: the estimate, by
        stochastic Lanczos quadrature.
    probes, steps, key
        Of the estimate: random starts, products for each, and the random key (a fixed one by default).
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"`fraction` must be in (0, 1], got {fraction}.")
    if power is not None and not power > 0:
        raise ValueError(f"`power` must be positive, got {power}.")
    if method not in ("auto", "quadrature"):
        raise ValueError(f"`method` must be 'auto' or 'quadrature', got {method!r}.")
    if isinstance(operator, AbstractOperator):
        check_values(operator, "effective_rank")
        power = (1 if operator.is_psd else 2) if power is None else power
        if power == 1 and not operator.is_psd:
            raise ValueError(
                "`power=1` sums eigenvalues, which need an operator known to be positive semi-definite; for "
                f"{type(operator).__name__} use `power=2` (squared singular values)."
            )
        whole = None if method == "quadrature" else whole_spectrum(operator)
        if whole is None:
            return _quadrature(operator, fraction, power, probes, steps, key)
        operator = whole
    if isinstance(operator, Spectrum):
        kind, how = operator.kind, operator.method
        power = (1 if kind == "eigenvalues" else 2) if power is None else power
        values = operator.values
        if total is None and not operator.is_complete:
            known = operator.total if power == (1 if kind == "eigenvalues" else 2) else None
            if known is None:
                raise ValueError(
                    f"A spectrum of {len(values)} of {operator.dimension} values has no known total for "
                    f"power {power}: an "
                    "effective rank of the computed modes alone is capped. Pass the operator itself, or "
                    "`total=`."
                )
            total = float(known)
    elif isinstance(operator, Consensus):
        kind = "eigenvalues" if operator.has_eigenvalues else "singular values"
        how, values = operator.method, operator.values
        power = (1 if kind == "eigenvalues" else 2) if power is None else power
    else:
        kind, how, values = "values", "values", jnp.asarray(operator)
        power = 1 if power is None else power
        if values.ndim != 1 or values.size == 0:
            raise ValueError(f"`operator` as an array must be a list of values, got shape {values.shape}.")
    rank, total = _count(np.asarray(values, np.float64), fraction, power, total, interpolate)
    error = jnp.asarray(jnp.nan if how == "probes" else 0.0)
    return EffectiveRank(jnp.asarray(rank), error, jnp.asarray(total), float(power), fraction, kind, how)


def _count(
    values: np.ndarray,
    fraction: int | float,
    power: int | float,
    total: int | float | None,
    interpolate: bool,
) -> tuple[float, float]:
    if not np.all(np.isfinite(values)) or values.min() < 0:
        raise ValueError("Effective ranks need finite, nonnegative values.")
    weights = np.sort(values)[::-1] ** power
    total = float(weights.sum()) if total is None else float(total)
    if not total > 0:
        raise ValueError(f"The effective rank of a zero operator is not defined (total {total}).")
    share = np.cumsum(weights) / total
    # A rounding error must not ask for one more mode when the fraction is met exactly.
    reached = np.flatnonzero(share >= fraction - 1e-13 * len(values) ** 0.5)
    if len(reached) == 0:
        raise ValueError(
            f"The {len(values)} values hold {share[-1]:.4g} of the total {total:.6g}, not {fraction}: the "
            "effective rank is "
            f"at least {len(values) + 1}. Compute more modes, or pass the operator itself."
        )
    k = int(reached[0])
    if not interpolate:
        return float(k + 1), total
    before = share[k - 1] if k else 0.0
    return k + (fraction - before) / (share[k] - before), total


def _quadrature(
    operator: AbstractOperator, fraction: int | float, power: int | float, probes: int, steps: int, key: Any
) -> EffectiveRank:
    require_integer("probes", probes, 2)
    require_integer("steps", steps, 2)
    size = operator.out_space.size
    exponent = power if operator.is_psd else power / 2  # of eigenvalues of the squared operator
    nodes, shares = [], []
    for probe_key in jr.split(jr.key(0) if key is None else key, probes):
        start = jr.rademacher(probe_key, (1, size), operator.out_space.dtype) / np.sqrt(size)
        values, vectors = np.linalg.eigh(
            expand(operator, start.astype(operator.out_space.dtype), steps).projected
        )
        nodes.append(np.clip(values, 0, None))
        shares.append(size * vectors[0] ** 2)
    whole = _cross(np.concatenate(nodes), np.concatenate(shares) / probes, fraction, exponent)
    # Leaving out one probe at a time gives the spread of the mean.
    left = np.array(
        [
            _cross(
                np.concatenate(nodes[:i] + nodes[i + 1 :]),
                np.concatenate(shares[:i] + shares[i + 1 :]) / (probes - 1),
                fraction,
                exponent,
            )[0]
            for i in range(probes)
        ]
    )
    error = np.sqrt((probes - 1) / probes * np.sum((left - left.mean()) ** 2))
    kind = "eigenvalues" if operator.is_psd else "singular values"
    return EffectiveRank(
        jnp.asarray(whole[0]),
        jnp.asarray(error),
        jnp.asarray(whole[1]),
        float(power),
        fraction,
        kind,
        "quadrature",
    )


def _cross(
    nodes: np.ndarray, counts: np.ndarray, fraction: int | float, exponent: int | float
) -> tuple[float, float]:
    """Number of eigenvalues above the level where their weighted sum reaches the fraction; the total."""
    order = np.argsort(-nodes)
    counts, weights = counts[order], counts[order] * nodes[order] ** exponent
    share = np.cumsum(weights) / weights.sum()
    k = int(np.searchsorted(share, fraction * (1 - 1e-12)))
    k = min(k, len(share) - 1)
    before = share[k - 1] if k else 0.0
    part = (fraction - before) / (share[k] - before)
    return float(counts[:k].sum() + min(part, 1.0) * counts[k]), float(weights.sum())


class Estimate(eqx.Module):
    """A number with the standard error of its estimate; zero if exact."""

    value: Float[Array, ""]
    standard_error: Float[Array, ""]

    def __repr__(self) -> str:
        if not is_printable(self.value, 0):
            return eqx.tree_pformat(vars(self))
        return f"Estimate({float(self.value):.6g} ± {float(self.standard_error):.2g})"


def total_variance(
    operator: AbstractOperator,
    power: int | float | None = None,
    *,
    probes: int = 32,
    key: PRNGKeyArray | None = None,
) -> Estimate:
    """Sum of eigenvalues (power 1) or of squared values (power 2) over the whole spectrum.

    Exact for K of unit-local cells and up to the dense limit, else by random probes (Hutchinson).

    Parameters
    ----------
    operator
        Any operator.
    power
        1, the trace of a positive semi-definite operator (its default), or 2, the squared Frobenius norm.
    probes, key
        Of the estimate beyond the dense limit; a fixed key by default.
    """
    power = (1 if operator.is_psd else 2) if power is None else power
    if power not in (1, 2) or (power == 1 and not operator.is_psd):
        raise ValueError(
            f"`power` must be 2, or 1 for an operator known to be positive semi-definite, got {power}."
        )
    zero = jnp.zeros(())
    form = _kernels.factored(operator) if isinstance(operator, ParameterOperator) and power == 1 else None
    if form is not None:
        return Estimate(_kernels.trace(form), zero)
    whole = whole_spectrum(operator)
    if whole is not None:
        return Estimate(jnp.sum(whole.values**power), zero)
    require_integer("probes", probes, 2)
    samples = _hutchinson(operator, power == 1, jr.split(jr.key(0) if key is None else key, probes))
    return Estimate(jnp.mean(samples), jnp.std(samples, ddof=1) / np.sqrt(probes))


@eqx.filter_jit
def _hutchinson(operator: AbstractOperator, is_trace: bool, keys: Array) -> Array:
    root = square_root(operator) if is_trace else None

    def one(key):
        q = jr.rademacher(key, (operator.out_space.size,), operator.out_space.dtype)
        if root is not None:
            return jnp.sum(whitened_rmv(root, q) ** 2)
        return jnp.sum(q * whitened_mv(operator, q)) if is_trace else jnp.sum(whitened_rmv(operator, q) ** 2)

    return jax.lax.map(one, keys)
