"""The bipartite graph of a mask, outputs on one side and inputs on the other, and what describes it."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._order import after
from ._masks import MaskLike, as_mask


class Connectivity(eqx.Module):
    """What the graph of trained pairs looks like; see :func:`connectivity`.

    Attributes
    ----------
    n_pairs
        Number of trained pairs ``T``.
    n_components
        Number of connected components of the 2L vertices; a language without trained pair is one of its own.
    output_component, input_component
        Component of each output and of each input.
    n_cross
        Number of pairs whose output and input lie in different components.
    algebraic_connectivity
        Second smallest Laplacian eigenvalue; zero when disconnected.
    singular_values
        Singular values of the mask, largest first.
    gap
        Relative gap ``1 - s2 / s1``.
    resistance
        Effective resistance between output and input, (outputs, inputs); infinite across components.
    output_degree, input_degree
        Number of trained pairs of each output and of each input.
    """

    n_pairs: Int[Array, "*batch"]
    n_components: Int[Array, "*batch"]
    output_component: Int[Array, "*batch languages"]
    input_component: Int[Array, "*batch languages"]
    n_cross: Int[Array, "*batch"]
    algebraic_connectivity: Float[Array, "*batch"]
    singular_values: Float[Array, "*batch languages"]
    gap: Float[Array, "*batch"]
    resistance: Float[Array, "*batch languages languages"]
    output_degree: Int[Array, "*batch languages"]
    input_degree: Int[Array, "*batch languages"]

    @property
    def is_connected(self) -> Bool[Array, "*batch"]:
        """Whether every output can be reached from every input."""
        return self.n_components == 1


def _adjacency(mask: Bool[Array, "languages languages"]) -> Bool[Array, "vertices vertices"]:
    empty = jnp.zeros_like(mask)
    return jnp.block([[empty, mask], [mask.T, empty]])


def components(
    mask: Bool[Array, "languages languages"],
) -> tuple[Int[Array, " languages"], Int[Array, " languages"]]:
    """Component of each output and of each input, numbered from zero."""
    languages = mask.shape[0]
    reach = (_adjacency(mask) | jnp.eye(2 * languages, dtype=bool)).astype(jnp.float32)
    # A path has at most 2L - 1 edges, and squaring doubles the length that is covered.
    for _ in range(math.ceil(math.log2(2 * languages))):
        reach = jnp.minimum(jnp.matmul(reach, reach, precision="highest"), 1)
    first = jnp.argmax(reach, axis=1)
    is_first = first == jnp.arange(2 * languages)
    label = (jnp.cumsum(is_first) - 1)[first]
    return label[:languages], label[languages:]


def connectivity(mask: MaskLike) -> Connectivity:
    r"""Describe the bipartite graph of the trained pairs.

    The Laplacian is :math:`\Lambda = \mathrm{diag}(\deg) - \mathrm{adjacency}`, of size 2L. With
    :math:`P = \Lambda^+` the effective resistance is :math:`R_{oi} = P_{oo} + P_{ii} - 2P_{oi}`. A connected
    mask needs at least 2L − 1 pairs.

    Parameters
    ----------
    mask
        Trained pairs, (outputs, inputs). Works under ``jit`` and ``vmap``.
    """
    return _describe(as_mask(mask))


@jax.jit
def _describe(mask: Bool[Array, "languages languages"]) -> Connectivity:
    languages = mask.shape[0]
    outputs, inputs = components(mask)
    label = jnp.concatenate([outputs, inputs])
    same = label[:, None] == label[None, :]
    real = jnp.zeros(()).dtype
    adjacency = _adjacency(mask).astype(real)
    laplacian = jnp.diag(adjacency.sum(1)) - adjacency
    # The projector on the kernel makes the pseudo-inverse a plain inverse: no threshold on eigenvalues.
    kernel = same.astype(real) / jnp.sum(same, axis=1, keepdims=True).astype(real)
    n_components = label.max() + 1
    eigenvalues = jnp.linalg.eigvalsh(laplacian)
    # Independent batched LAPACK calls can deadlock on a CPU: each waits for the one before.
    singular = jnp.linalg.svd(after(mask.astype(real), eigenvalues), compute_uv=False)
    pinv = jnp.linalg.inv(after(laplacian + kernel, singular)) - kernel
    diagonal = jnp.diag(pinv)
    distance = diagonal[:languages, None] + diagonal[None, languages:] - 2 * pinv[:languages, languages:]
    connects = same[:languages, languages:]
    second = singular[1] if languages > 1 else jnp.zeros_like(singular[0])
    return Connectivity(
        n_pairs=mask.sum(),
        n_components=n_components,
        output_component=outputs,
        input_component=inputs,
        n_cross=jnp.sum(~connects),
        algebraic_connectivity=jnp.where(n_components > 1, 0.0, eigenvalues[1]),
        singular_values=singular,
        gap=1 - second / singular[0],
        resistance=jnp.where(connects, distance, jnp.inf),
        output_degree=mask.sum(1),
        input_degree=mask.sum(0),
    )
