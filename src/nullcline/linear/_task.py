"""Linear regression tasks: data, or only the correlation that gradient flow sees."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from .._checks import (
    as_float,
    is_concrete,
    require_finite,
    require_key,
    require_matrix,
    require_nonnegative,
    require_sizes,
)
from .._precision import full_precision

_HIERARCHY = (
    (1, 1, 1, 0, 1, 0, 0, 0),
    (1, 1, 1, 0, -1, 0, 0, 0),
    (1, 1, -1, 0, 0, 1, 0, 0),
    (1, 1, -1, 0, 0, -1, 0, 0),
    (1, -1, 0, 1, 0, 0, 1, 0),
    (1, -1, 0, 1, 0, 0, -1, 0),
    (1, -1, 0, -1, 0, 0, 0, 1),
    (1, -1, 0, -1, 0, 0, 0, -1),
)


def isotropy_tolerance(dtype: jnp.dtype) -> float:
    r"""Largest relative distance of :math:`\Sigma_{xx}` from a scaled projector that counts as white."""
    return 1e-8 if jnp.finfo(dtype).bits == 64 else 1e-4


class Task(eqx.Module):
    r"""A regression task :math:`\min \|W_2 W_1 X - Y\|_F^2 / (2P)`.

    Samples are the columns of ``x`` (inputs, samples) and ``y`` (outputs, samples). The exact solutions need
    *isotropic* inputs, :math:`\Sigma_{xx} = X X^\top / P = \kappa \Pi` with a projector :math:`\Pi` (whitened
    inputs: :math:`\kappa = 1, \Pi = I`); then gradient flow for time :math:`t` is the flow of the whitened
    task with correlation :math:`\Sigma_{yx}/\kappa` for time :math:`\kappa t`, on the span of the inputs.

    ``Task.from_correlation`` makes a task without data from :math:`\Sigma_{yx}` alone.
    """

    x: Float[Array, "inputs samples"] | None
    y: Float[Array, "outputs samples"] | None
    correlation: Float[Array, "outputs inputs"] | None
    # True, False, or None where the inputs were traced and nobody could look.
    is_isotropic: bool | None = eqx.field(static=True)
    # Whether isotropic inputs are known to span the whole input space.
    is_spanning: bool = eqx.field(static=True)

    def __init__(self, x, y, *, is_isotropic: bool | None = None, is_spanning: bool | None = None):
        """Make a task from data; what is not said about the inputs is found out where they can be seen."""
        x, y = as_float("x", x), as_float("y", y)
        require_matrix("x", x, "inputs", "samples")
        require_matrix("y", y, "outputs", "samples")
        if x.shape[1] != y.shape[1]:
            raise ValueError(
                f"`x` and `y` must have one column per sample, got {x.shape[1]} and {y.shape[1]} columns "
                f"(shapes {x.shape} and {y.shape}). Transpose arrays that hold one sample per row."
            )
        require_finite("x", x)
        require_finite("y", y)
        self.x, self.y, self.correlation = x, y, None
        for name, said in (("is_isotropic", is_isotropic), ("is_spanning", is_spanning)):
            if not (said is None or isinstance(said, bool)):
                raise ValueError(f"`{name}` must be True, False or None (find out), got {said!r}.")
        if is_concrete(x) and is_isotropic is not False:
            distance, allowed = isotropy(np.asarray(x)), isotropy_tolerance(x.dtype)
            if is_isotropic and not distance <= allowed:
                raise ValueError(
                    "`is_isotropic` = True contradicts `x`: XXᵀ/P is a relative distance of "
                    f"{distance:.2g} from a scaled projector, allowed {allowed:.0e}. Leave it out."
                )
            is_isotropic = distance <= allowed
            found = is_isotropic and dimension(np.asarray(x)) > x.shape[0] - 0.5
            if is_spanning and not found:
                raise ValueError(
                    "`is_spanning` = True contradicts `x`, which is not isotropic on all of its "
                    f"{x.shape[0]} dimensions. Leave it out."
                )
            is_spanning = found if is_spanning is None else is_spanning
        is_spanning = bool(is_spanning)
        self.is_isotropic, self.is_spanning = is_isotropic, is_spanning

    @classmethod
    def from_correlation(cls, sigma_yx) -> "Task":
        r"""Whitened task with the given correlation :math:`\Sigma_{yx}` (outputs, inputs), without data.

        Its irreducible loss is zero. Kernels and similarity matrices, which need samples, are not defined.
        """
        sigma_yx = as_float("sigma_yx", sigma_yx)
        require_matrix("sigma_yx", sigma_yx, "outputs", "inputs")
        require_finite("sigma_yx", sigma_yx)
        task = object.__new__(cls)
        values = {"x": None, "y": None, "correlation": sigma_yx, "is_isotropic": True, "is_spanning": True}
        for name, value in values.items():
            object.__setattr__(task, name, value)
        return task

    @property
    def data(self) -> tuple[Float[Array, "inputs samples"], Float[Array, "outputs samples"]]:
        """Inputs and outputs; raises where the task is a correlation only."""
        if self.x is None or self.y is None:
            raise ValueError(
                "This task was made from a correlation and has no samples. Build it with `Task(x, y)` to "
                "ask for kernels and similarity matrices."
            )
        return self.x, self.y

    @property
    def n_in(self) -> int:
        """Number of inputs."""
        return self.data[0].shape[-2] if self.correlation is None else self.correlation.shape[-1]

    @property
    def n_out(self) -> int:
        """Number of outputs."""
        return self.data[1].shape[-2] if self.correlation is None else self.correlation.shape[-2]

    @property
    def n_samples(self) -> int | None:
        """Number of samples, None without data."""
        return None if self.x is None else self.x.shape[-1]

    @property
    @full_precision
    def sigma_yx(self) -> Float[Array, "outputs inputs"]:
        r"""Input-output correlation :math:`\Sigma_{yx} = Y X^\top / P`."""
        if self.correlation is not None:
            return self.correlation
        x, y = self.data
        return y @ jnp.swapaxes(x, -1, -2) / x.shape[-1]

    @property
    @full_precision
    def sigma_xx(self) -> Float[Array, "inputs inputs"]:
        r"""Input correlation :math:`\Sigma_{xx} = X X^\top / P`."""
        if self.correlation is not None:
            return jnp.eye(self.n_in, dtype=self.correlation.dtype)
        x, _ = self.data
        return x @ jnp.swapaxes(x, -1, -2) / x.shape[-1]

    @property
    def kappa(self) -> Float[Array, ""]:
        r"""Scale of isotropic inputs, :math:`\Sigma_{xx} = \kappa\Pi`: the one nonzero eigenvalue."""
        if self.correlation is not None:
            return jnp.ones((), self.correlation.dtype)
        sigma_xx = self.sigma_xx
        return jnp.sum(sigma_xx**2) / jnp.trace(sigma_xx)

    @property
    def target(self) -> Float[Array, "outputs inputs"]:
        r"""What the network function converges to on isotropic inputs, :math:`\Sigma_{yx} / \kappa`."""
        return self.sigma_yx / self.kappa

    @property
    def span(self) -> Float[Array, "inputs inputs"]:
        r"""Projector :math:`\Pi` on the span of isotropic inputs; the identity for whitened inputs."""
        return self.sigma_xx / self.kappa

    @property
    @full_precision
    def constant(self) -> Float[Array, ""]:
        r"""Irreducible loss :math:`c = \frac12(\mathrm{tr}(YY^\top)/P - \|\Sigma_{yx}\|_F^2/\kappa)`.

        For isotropic inputs: the part of the loss that no linear network can learn.
        """
        if self.correlation is not None:
            return jnp.zeros((), self.correlation.dtype)
        x, y = self.data
        return 0.5 * jnp.sum((y - self.target @ x) ** 2) / x.shape[-1]


def require_task(name: str, task: object) -> None:
    """Raise unless ``task`` is one task."""
    if not isinstance(task, Task):
        raise ValueError(
            f"`{name}` must be a `linear.Task`, got a {type(task).__name__}: make it from data, "
            "`linear.Task(x, y)`, or from a matrix, `linear.Task.from_correlation(sigma)`."
        )
    array = task.data[0] if task.correlation is None else task.correlation
    if array.ndim != 2:
        raise ValueError(
            f"`{name}` holds a batch of tasks, its arrays have shapes like {array.shape}: use "
            "`jax.vmap(lambda task: …)(tasks)`."
        )


def isotropy(x: np.ndarray) -> float:
    r"""Relative distance of :math:`\Sigma_{xx}` from a scaled projector, 0 for isotropic inputs."""
    sigma_xx = x @ x.T / x.shape[1]
    total = np.trace(sigma_xx)
    if total == 0:
        return np.inf
    kappa = np.sum(sigma_xx**2) / total
    # A scaled projector obeys A² = κA; each eigenvalue e contributes e(e − κ)/κ.
    return float(np.linalg.norm(sigma_xx @ sigma_xx / kappa - sigma_xx) / np.linalg.norm(sigma_xx))


def dimension(x: np.ndarray) -> float:
    """Number of dimensions that isotropic inputs span."""
    sigma_xx = x @ x.T
    return float(np.trace(sigma_xx) ** 2 / np.sum(sigma_xx**2))


@full_precision
def whiten(x: Float[Array, "inputs samples"], *, center: bool = False) -> Float[Array, "inputs samples"]:
    r"""Nearest whitened inputs, :math:`\sqrt P\, U V^\top` from the thin SVD :math:`X = U S V^\top`.

    Parameters
    ----------
    x
        Inputs, one sample per column; at least as many samples as inputs, and of full rank.
    center
        Remove the mean over samples first.
    """
    x = as_float("x", x)
    require_matrix("x", x, "inputs", "samples")
    require_finite("x", x)
    if not isinstance(center, bool):
        raise ValueError(f"`center` must be True or False, got {center!r}.")
    inputs, samples = x.shape
    if samples < inputs + center:
        raise ValueError(
            f"Whitening {inputs} inputs needs at least {inputs + center} samples, got {samples}. "
            "Project the inputs on fewer dimensions or add samples."
        )
    if center:
        x = x - jnp.mean(x, axis=1, keepdims=True)
    u, s, vt = jnp.linalg.svd(x, full_matrices=False)
    if is_concrete(s) and not s[-1] > samples * jnp.finfo(x.dtype).eps * s[0]:
        used = int(jnp.sum(s > samples * jnp.finfo(x.dtype).eps * s[0]))
        raise ValueError(
            f"Whitening needs `x` to span all of its {inputs} dimensions, it spans {used}: rounding errors "
            "would become inputs. Project them on fewer dimensions, or use isotropic inputs as they are, "
            "which may lie in a subspace."
        )
    return jnp.sqrt(jnp.asarray(samples, x.dtype)) * (u @ vt)


def random_regression(
    n_in: int, n_out: int, n_samples: int, scale: float = 1.0, *, key: PRNGKeyArray
) -> Task:
    """Random regression task: Gaussian inputs, whitened, and independent Gaussian outputs.

    Parameters
    ----------
    n_in, n_out, n_samples
        Sizes; whitening needs ``n_samples >= n_in``.
    scale
        Standard deviation of the outputs.
    key
        Random key.
    """
    require_sizes(n_in=n_in, n_out=n_out, n_samples=n_samples)
    scale = require_nonnegative("scale", scale)
    if n_samples < n_in:
        raise ValueError(
            f"`n_samples` must be at least `n_in` = {n_in} for whitened inputs, got {n_samples}."
        )
    require_key(key)
    return _draw_regression(n_in, n_out, n_samples, scale, key)


# One program: run operation by operation, the first draw of a size would compile dozens of kernels.
@partial(jax.jit, static_argnums=(0, 1, 2))
@full_precision
def _draw_regression(n_in: int, n_out: int, n_samples: int, scale, key) -> Task:
    x_key, y_key = jr.split(key)
    x = whiten(jr.normal(x_key, (n_in, n_samples)))
    y = jr.normal(y_key, (n_out, n_samples))
    return Task(x, jnp.asarray(scale, y.dtype) * y, is_isotropic=True, is_spanning=True)


def semantic_hierarchy() -> Task:
    r"""The living-things task of the documents: eight items, one-hot, and their eight properties.

    Inputs are :math:`I_8` with :math:`P = 8`, so :math:`\kappa = 1/8`. Items are the columns of ``y``; the
    target :math:`\Sigma_{yx}/\kappa = Y` has singular values :math:`(\sqrt8, \sqrt8, 2, 2, \sqrt2, \dots)`.
    """
    y = jnp.asarray(np.asarray(_HIERARCHY, dtype=float).T)
    return Task(jnp.eye(8, dtype=y.dtype), y, is_isotropic=True, is_spanning=True)
