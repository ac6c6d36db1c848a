"""What the studies of the note share: coupled masks and starts, batched training, judgments of runs."""

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from .._lazy import jax, jnp, jr, lazily

if TYPE_CHECKING:
    from nullcline import gated
else:
    gated = lazily("nullcline.gated")

# Masks and starts of one seed come from different keys, so that either can be kept while the other changes.
MASKS, STARTS = 1, 2


def key(kind: int, seed: int) -> Any:
    """Key of the masks or of the starts of a seed."""
    return jr.fold_in(jr.key(kind), seed)


def start(languages: int, words: int, hidden: int, scale: float, seed: int) -> Any:
    """Initial network of a seed: one draw, rescaled."""
    return gated.initialize(languages, words, hidden, scale, key=key(STARTS, seed))


def stack(trees: list[Any]) -> Any:
    """Stack networks along a leading axis of runs."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def train(networks: Any, masks: Any, **options: Any) -> Any:
    """Train a batch; masks that cannot connect are part of these studies and need no warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gated.MaskWarning)
        module = gated.scalar if hasattr(networks, "u") else gated
        return module.train_batch(networks, masks, **options)


def describe(masks: Any) -> dict[str, np.ndarray]:
    """Scalars of a stack of masks; ``resistance`` is a mean over the untrained pairs of a connected mask."""
    graph = jax.vmap(gated.connectivity)(masks)
    untrained = ~np.asarray(masks)
    resistance = np.where(untrained, np.asarray(graph.resistance), 0).sum((1, 2)) / untrained.sum((1, 2))
    return {
        "components": np.asarray(graph.n_components),
        "cross_pairs": np.asarray(graph.n_cross),
        "connectivity": np.asarray(graph.algebraic_connectivity),
        "gap": np.asarray(graph.gap),
        "smallest_degree": np.minimum(
            np.asarray(graph.output_degree).min(1), np.asarray(graph.input_degree).min(1)
        ),
        "resistance": np.where(np.isfinite(resistance), resistance, np.nan),
    }


def outcome(run: Any) -> dict[str, np.ndarray]:
    """What is stored of a batch of block runs; ``converged`` says which of them may enter a mean."""
    return {
        "converged": np.asarray(run.is_converged),
        "train": np.asarray(run.train_loss),
        "test": np.asarray(run.test_loss),
        "within": np.asarray(run.within_loss),
        "cross": np.asarray(run.cross_loss),
        "frustration": np.asarray(run.frustration),
        "growth": np.asarray(run.growth),
        "evaluations": np.asarray(run.evaluations),
    }


def auc(score: np.ndarray, is_success: np.ndarray) -> float:
    """Chance that a success scores above a failure, ties counting half; NaN without both."""
    good, bad = score[is_success], score[~is_success]
    if not good.size or not bad.size:
        return float("nan")
    return float(np.mean((good[:, None] > bad[None, :]) + 0.5 * (good[:, None] == bad[None, :])))


def slope(x: np.ndarray, y: np.ndarray, weight: np.ndarray | None = None) -> float:
    """Slope of ``log y`` against ``log x``, by weighted least squares; NaN from a single point."""
    if len(x) < 2:
        return float("nan")
    return float(np.polyfit(np.log(x), np.log(y), 1, w=None if weight is None else np.sqrt(weight))[0])
