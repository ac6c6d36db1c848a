r"""Expected balance of random weights, and how far from balanced they stay.

For :math:`W_1` (hidden × in) and :math:`W_2` (out × hidden) with independent entries of variance
:math:`\sigma_1^2, \sigma_2^2`, the matrix :math:`D = W_2^T W_2 - W_1 W_1^T` has mean :math:`\lambda I` with
:math:`\lambda = n_{out}\sigma_2^2 - n_{in}\sigma_1^2`, and, for Gaussian entries, variance
:math:`v = n_{out}\sigma_2^4 + n_{in}\sigma_1^4` off the diagonal and :math:`2v` on it. These are the
corrected tables 3.1, 3.2 and 3.3 of anguita2024 (errata: the diagonal variance is 2v, not 4v; the Scaled row
holds :math:`\alpha^4`; four entries of the Glorot row of table 3.3).
"""

import dataclasses
import math
import sys
from typing import Literal

import numpy as np

from .._checks import as_float, is_concrete, require_integer, require_positive

Scheme = Literal["lecun", "glorot", "he", "scaled"]
Limit = Literal["r=k", "r->0", "r->inf", "k->0", "k->inf"]


@dataclasses.dataclass(frozen=True)
class ExpectedBalance:
    r"""Mean and variance of :math:`D = W_2^T W_2 - W_1 W_1^T` under a random initialization.

    Attributes
    ----------
    lam
        :math:`\lambda`: the mean of D is :math:`\lambda I`.
    variance
        Variance v of an off-diagonal entry.
    n_hidden
        Size of D.
    """

    lam: float
    variance: float
    n_hidden: int

    @property
    def diagonal_variance(self) -> float:
        """Variance of a diagonal entry, 2v."""
        return 2 * self.variance

    @property
    def fitted_deviation(self) -> float:
        r"""Standard deviation of the fitted :math:`\lambda^* = \mathrm{tr} D / n_h`, sqrt(2v / n_h)."""
        return math.sqrt(2 * self.variance / self.n_hidden)

    @property
    def distance(self) -> float:
        r"""Root mean square of :math:`\|D - \lambda I\|_F`, namely :math:`\sqrt{n_h (n_h + 1) v}`."""
        return math.sqrt(self.n_hidden * (self.n_hidden + 1) * self.variance)

    @property
    def relative_distance(self) -> float:
        r"""Distance over :math:`\|\lambda I\|_F = |\lambda|\sqrt{n_h}`; infinite when :math:`\lambda = 0`.

        It does not vanish with the width: for LeCun it tends to :math:`\sqrt{k + r/k}/|r/k - 1|` with
        :math:`k = n_h/n_{in}` and :math:`r = n_{out}/n_{in}`. Single entries of D concentrate, the
        matrix does not, so random weights are not balanced however wide the network.
        """
        size = abs(self.lam) * math.sqrt(self.n_hidden)
        return math.inf if size == 0 else self.distance / size


def check_scheme(scheme: str, alphas: tuple) -> None:
    """Raise unless the scheme exists and ``alphas`` are two scales that belong to it."""
    if scheme not in ("lecun", "glorot", "he", "scaled"):
        raise ValueError(f"`scheme` must be 'lecun', 'glorot', 'he' or 'scaled', got {scheme!r}.")
    values = as_float("alphas", alphas)
    is_known = is_concrete(values)
    known = np.asarray(values) if is_known else np.ones(values.shape)
    if known.shape != (2,) or not ((known >= 0) & (known < 1e100)).all():
        raise ValueError(f"`alphas` must be two numbers from 0 to below 1e100, got {alphas}.")
    if scheme != "scaled" and not (is_known and (known == 1).all()):
        raise ValueError(f"`alphas` belong to scheme 'scaled'; scheme {scheme!r} has none, got {alphas}.")


def expected_balance(
    n_in: int,
    n_hidden: int,
    n_out: int,
    *,
    scheme: Scheme = "lecun",
    alphas: tuple[float, float] = (1.0, 1.0),
) -> ExpectedBalance:
    r"""Mean and variance of the balance matrix of random weights (anguita2024, tables 3.1 and 3.2).

    Parameters
    ----------
    n_in, n_hidden, n_out
        Sizes of the network.
    scheme
        ``lecun`` (variance 1/fan-in), ``he`` (2/fan-in), ``glorot`` (2/(fan-in + fan-out)) or ``scaled``
        (:math:`\alpha^2`/fan-in).
    alphas
        :math:`(\alpha_1, \alpha_2)` of the first and second layer, for ``scaled``.
    """
    for name, size in (("n_in", n_in), ("n_hidden", n_hidden), ("n_out", n_out)):
        require_integer(name, size, 1, sys.maxsize)  # no array is made: limits may be looked at
    check_scheme(scheme, alphas)
    match scheme:
        case "lecun":
            first, second = 1 / n_in, 1 / n_hidden
        case "he":
            first, second = 2 / n_in, 2 / n_hidden
        case "glorot":
            first, second = 2 / (n_in + n_hidden), 2 / (n_hidden + n_out)
        case "scaled":
            first, second = alphas[0] ** 2 / n_in, alphas[1] ** 2 / n_hidden
    return ExpectedBalance(
        lam=n_out * second - n_in * first,
        variance=n_out * second**2 + n_in * first**2,
        n_hidden=n_hidden,
    )


def expected_lambda_limit(
    limit: Limit,
    *,
    scheme: Scheme,
    k: float = 1.0,
    r: float = 1.0,
    alphas: tuple[float, float] = (1.0, 1.0),
) -> float:
    r"""Limit of the expected :math:`\lambda` in the ratios of the layers (anguita2024, table 3.3, corrected).

    Parameters
    ----------
    limit
        ``r=k`` (hidden and output layer of one size), ``r->0``, ``r->inf``, ``k->0`` or ``k->inf``.
    scheme
        As in :func:`expected_balance`.
    k, r
        :math:`k = n_h/n_{in}` and :math:`r = n_{out}/n_{in}`; the one that ``limit`` fixes is ignored.
    alphas
        :math:`(\alpha_1, \alpha_2)`, for ``scaled``, whose :math:`\lambda` vanishes at
        :math:`r = k\,\alpha_1^2/\alpha_2^2`.

    Returns
    -------
    The limit; infinite where :math:`\lambda` diverges (as :math:`r/k` times the scale of the second layer).
    """
    check_scheme(scheme, alphas)
    if limit not in ("r=k", "r->0", "r->inf", "k->0", "k->inf"):
        raise ValueError(f"`limit` must be 'r=k', 'r->0', 'r->inf', 'k->0' or 'k->inf', got {limit!r}.")
    k, r = float(require_positive("k", k)), float(require_positive("r", r))
    if scheme == "glorot":
        return {
            "r=k": (k - 1) / (k + 1),
            "r->0": -2 / (k + 1),
            "r->inf": 2 * k / (k + 1),
            "k->0": 0.0,
            "k->inf": 0.0,
        }[limit]
    scales = {"lecun": (1.0, 1.0), "he": (2.0, 2.0), "scaled": (alphas[0] ** 2, alphas[1] ** 2)}
    first, second = scales[scheme]
    if limit == "r=k":
        return second - first
    if limit in ("r->0", "k->inf") or second == 0:
        return -first
    return math.inf
