"""A two-layer LSTM that classifies sentences, and the low-rank analysis of each of its weight blocks.

The model of schuessler2020, section S6: fixed word vectors, two layers with dropout between them and before
the readout (not on the recurrence), and the logit read from the last valid state.
"""

import math
from collections.abc import Callable, Sequence
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from .._checks import require_size
from ._cells import uniform
from ._gated_cells import check_gates, lstm_update
from ._measures import truncate
from ._words import Corpus, WordVectors

BLOCKS = ("layer 1 recurrent", "layer 2 input", "layer 2 recurrent")
# Batches are padded to a multiple of this many tokens: few shapes to compile, little padding to compute.
_BUCKET = 12


class LSTMLayer(eqx.Module):
    """Weights of one layer, gates stacked as input, forget, cell, output."""

    w_in: Float[Array, "inputs gates"]
    w: Float[Array, "gates hidden"]
    b_in: Float[Array, " gates"]
    b: Float[Array, " gates"]

    def __check_init__(self):
        check_gates(self.w, 4)

    def __call__(self, inputs: Float[Array, "time batch inputs"]) -> Float[Array, "time batch hidden"]:
        """Hidden states after each input."""
        return _recur(self.w, inputs @ self.w_in + (self.b_in + self.b)[None, None, :])


class LSTMClassifier(eqx.Module):
    """Two LSTM layers over fixed word vectors, with an affine readout."""

    first: LSTMLayer
    second: LSTMLayer
    w_out: Float[Array, " hidden"]
    b_out: Float[Array, ""]
    vectors: Float[Array, "words width"]

    def __check_init__(self):
        if self.first.w_in.shape[0] != self.vectors.shape[1]:
            raise ValueError(
                f"The word vectors have width {self.vectors.shape[1]}, the first layer takes "
                f"{self.first.w_in.shape[0]}; they must be equal."
            )

    @property
    def hidden(self) -> int:
        """Number of units of a layer."""
        return self.second.w.shape[-1]

    def __call__(
        self, tokens: Array, lengths: Array, *, dropout: float = 0.0, key: PRNGKeyArray | None = None
    ) -> Float[Array, " batch"]:
        """Logit of the positive label for each sentence; ``key`` draws what ``dropout`` drops."""
        keys = (None, None) if key is None else jr.split(key)
        states = self.first(jnp.swapaxes(self.vectors[tokens], 0, 1))
        states = self.second(_drop(states, dropout, keys[0]))
        last = states[lengths - 1, jnp.arange(len(lengths))]
        return _drop(last, dropout, keys[1]) @ self.w_out + self.b_out


def _drop(values: Array, dropout: float, key: PRNGKeyArray | None) -> Array:
    if key is None or dropout == 0:
        return values
    is_kept = jr.bernoulli(key, 1 - dropout, values.shape)
    return jnp.where(is_kept, values / (1 - dropout), jnp.zeros_like(values))


def _scan(w: Array, drive: Array) -> Array:
    zeros = jnp.zeros((drive.shape[1], w.shape[1]), drive.dtype)

    def step(carry, now):
        hidden, memory = lstm_update(now + carry[0] @ w.T, carry[1])
        return (hidden, memory), hidden

    return lax.scan(step, (zeros, zeros), drive)[1]


# The gradient of the recurrent weights is one product over (time x batch): the adjoint of the drive is that
# of the gates, so the reverse scan need not carry an accumulator of the size of the weights.
@jax.custom_vjp
def _recur(w, drive):
    return _scan(w, drive)


def _recur_forward(w, drive):
    states, pull_back = jax.vjp(lambda drive: _scan(w, drive), drive)
    return states, (pull_back, states)


def _recur_backward(residuals, cotangent):
    pull_back, states = residuals
    (gates,) = pull_back(cotangent)
    before = jnp.concatenate([jnp.zeros_like(states[:1]), states[:-1]])
    return gates.reshape(-1, gates.shape[-1]).T @ before.reshape(-1, before.shape[-1]), gates


_recur.defvjp(_recur_forward, _recur_backward)


def lstm_classifier(words: WordVectors, n_hidden: int, *, key: PRNGKeyArray) -> LSTMClassifier:
    r"""Draw weights :math:`U(\pm 1/\sqrt N)`; for the input of layer 1, N is the width of the vectors."""
    require_size("n_hidden", n_hidden)
    table = words.vectors
    dtype, width, keys = table.dtype, table.shape[1], iter(jr.split(key, 10))

    def layer(inputs, fan_in):
        return LSTMLayer(
            uniform(next(keys), (inputs, 4 * n_hidden), fan_in, dtype),
            uniform(next(keys), (4 * n_hidden, n_hidden), n_hidden, dtype),
            uniform(next(keys), (4 * n_hidden,), n_hidden, dtype),
            uniform(next(keys), (4 * n_hidden,), n_hidden, dtype),
        )

    return LSTMClassifier(
        layer(width, width),
        layer(n_hidden, n_hidden),
        uniform(next(keys), (n_hidden,), n_hidden, dtype),
        uniform(next(keys), (), n_hidden, dtype),
        table,
    )


def _batches(corpus: Corpus, size: int, order: np.ndarray, pool: int = 16):
    """Give batches of similar length: sorted within pools of ``order``, padded to a bucket width."""
    for start in range(0, len(order), pool * size):
        rows = order[start : start + pool * size]
        rows = rows[np.argsort(corpus.lengths[rows], kind="stable")]
        for begin in range(0, len(rows), size):
            part = rows[begin : begin + size]
            width = -(-int(corpus.lengths[part].max()) // _BUCKET) * _BUCKET
            tokens = np.zeros((size, width), np.int32)
            cut = corpus.tokens[part, :width]
            tokens[: len(part), : cut.shape[1]] = cut
            lengths, labels, weights = np.ones(size, np.int32), np.zeros(size), np.zeros(size)
            lengths[: len(part)], labels[: len(part)], weights[: len(part)] = (
                corpus.lengths[part],
                corpus.labels[part],
                1,
            )
            yield part, tokens, lengths, labels, weights


@eqx.filter_jit
def _logits(model, tokens, lengths):
    # All digits of float32; a GPU does not give them by default.
    with jax.default_matmul_precision("highest"):
        return model(tokens, lengths)


def logits(
    model: LSTMClassifier, corpus: Corpus, *, batch_size: int = 256
) -> Float[np.ndarray, " sentences"]:
    """Logits of all sentences, without dropout."""
    _check_corpus(model, corpus)
    values = np.zeros(len(corpus))
    for rows, tokens, lengths, _, _ in _batches(corpus, batch_size, np.arange(len(corpus)), pool=len(corpus)):
        values[rows] = np.asarray(_logits(model, jnp.asarray(tokens), jnp.asarray(lengths)))[: len(rows)]
    return values


def _check_corpus(model: LSTMClassifier, corpus: Corpus) -> None:
    # A lookup beyond the table would give its last row without a word.
    largest, known = int(corpus.tokens.max()), model.vectors.shape[0]
    if largest >= known:
        raise ValueError(
            f"`corpus` refers to word {largest}, the model has vectors of {known}: encode the sentences with "
            "the word vectors that the model was made with."
        )


def accuracy(model: LSTMClassifier, corpus: Corpus) -> float:
    """Share of sentences with the right label."""
    return float(np.mean((logits(model, corpus) > 0) == (corpus.labels == 1)))


class ClassifierCheckpoint(eqx.Module):
    """All that training carries from one epoch to the next, with the record of the epochs before.

    ``equinox.tree_serialise_leaves`` writes it and :func:`first_classifier_checkpoint` gives the form to read
    it back.
    """

    epoch: Int[np.ndarray, ""]
    model: LSTMClassifier
    optimizer_state: PyTree
    history: Float[np.ndarray, "curves epochs"]

    @property
    def loss(self) -> float:
        """Training loss of the last epoch."""
        return float(self.history[0, max(int(self.epoch) - 1, 0)])


def first_classifier_checkpoint(model: LSTMClassifier, *, epochs: int) -> ClassifierCheckpoint:
    """Checkpoint before the first epoch; also the form that a checkpoint on disk is read into."""
    require_size("epochs", epochs)
    state = _ADAM.init(eqx.filter(model, _trained(model)))
    return ClassifierCheckpoint(np.asarray(0), model, state, np.full((4, epochs), np.nan))


class ClassifierResult(eqx.Module):
    """What training did to a classifier, with one entry per epoch.

    ``flags`` may hold ``diverged`` (``final`` is then the model before that epoch), ``stopped`` and
    ``low_coverage`` (fewer than 0.8 of the tokens have a vector).
    """

    initial: LSTMClassifier
    final: LSTMClassifier
    losses: Float[np.ndarray, " epochs"]
    accuracies: Float[np.ndarray, " epochs"]
    held_out_losses: Float[np.ndarray, " epochs"]
    held_out_accuracies: Float[np.ndarray, " epochs"]
    checkpoint: ClassifierCheckpoint
    flags: tuple[str, ...] = eqx.field(static=True)


@eqx.filter_jit
def _update(model, state, batch, learning_rate, dropout, key):
    tokens, lengths, labels, weights = batch
    params, frozen = eqx.partition(model, _trained(model))

    def objective(params):
        values = eqx.combine(params, frozen)(tokens, lengths, dropout=dropout, key=key)
        losses = optax.sigmoid_binary_cross_entropy(values, labels)
        return jnp.sum(weights * losses) / jnp.sum(weights), values

    with jax.default_matmul_precision("highest"):
        (value, values), gradient = jax.value_and_grad(objective, has_aux=True)(params)
    with jax.numpy_dtype_promotion("standard"):
        updates, state = _ADAM.update(gradient, state, params)
    params = jax.tree.map(lambda p, u: p + learning_rate * u, params, updates)
    hits = jnp.sum(weights * ((values > 0) == (labels > 0)).astype(values.dtype))
    return eqx.combine(params, frozen), state, value, hits


_ADAM = optax.adam(1.0)


def _trained(model: LSTMClassifier) -> LSTMClassifier:
    """Everything but the word vectors."""
    spec = jax.tree.map(lambda _: True, model)
    return eqx.tree_at(lambda tree: tree.vectors, spec, False)


def train_classifier(
    model: LSTMClassifier,
    corpus: Corpus,
    *,
    epochs: int,
    held_out: Corpus,
    batch_size: int = 64,
    learning_rate: float | None = None,
    dropout: float = 0.5,
    report: Callable[[ClassifierCheckpoint], bool | None] | None = None,
    resume: ClassifierCheckpoint | None = None,
    key: PRNGKeyArray,
) -> ClassifierResult:
    """Train all weights but the word vectors with Adam on the binary cross-entropy.

    Parameters
    ----------
    model, corpus
        The network, and the sentences it is trained on; an epoch is one pass over them.
    epochs, batch_size
        Number of epochs; sentences in a batch, of similar length.
    held_out
        Sentences on which loss and accuracy are recorded after every epoch.
    learning_rate
        By default 0.01/N.
    dropout
        Share of the hidden states that is dropped between the layers and before the readout, in [0, 1).
    report
        Called with the :class:`ClassifierCheckpoint` after every epoch, to show progress or to save it;
        training stops when it returns true.
    resume
        Go on from this checkpoint, to the numbers of a training that was not stopped; every other argument
        must be as before.
    key
        Random key of the order of sentences and of dropout.
    """
    require_size("batch_size", batch_size)
    _check_corpus(model, corpus)
    if not 0 <= dropout < 1:
        raise ValueError(f"`dropout` must be in [0, 1), got {dropout}.")
    dtype = model.w_out.dtype
    rate = jnp.asarray(0.01 / model.hidden if learning_rate is None else learning_rate, dtype)
    flags = ("low_coverage",) if corpus.coverage < 0.8 else ()
    done = first_classifier_checkpoint(model, epochs=epochs)
    if resume is not None:
        if _shapes(resume) != _shapes(done):
            raise ValueError(
                "`resume` does not belong to this training: model and `epochs` must be those of the run that "
                "wrote the checkpoint."
            )
        done = resume
    for epoch in range(int(done.epoch), epochs):
        after, state, curves = _epoch(
            done.model, done.optimizer_state, corpus, batch_size, rate, dropout, jr.fold_in(key, epoch)
        )
        if not np.all(np.isfinite(curves)):
            flags = (*flags, "diverged")
            break
        history = done.history.copy()
        history[:, epoch] = *curves, *_held_out(after, held_out)
        done = ClassifierCheckpoint(np.asarray(epoch + 1), after, state, history)
        if report is not None and report(done) and epoch + 1 < epochs:
            flags = (*flags, "stopped")
            break
    return ClassifierResult(model, done.model, *done.history, checkpoint=done, flags=flags)


def _epoch(model, state, corpus, batch_size, rate, dropout, key):
    """One pass over the sentences; the model, the optimizer's state, and training loss and accuracy."""
    order_key, drop_key = jr.split(key)
    order = np.asarray(jr.permutation(order_key, len(corpus)))
    total = hits = 0.0
    for index, (rows, tokens, lengths, labels, weights) in enumerate(_batches(corpus, batch_size, order)):
        batch = (
            jnp.asarray(tokens),
            jnp.asarray(lengths),
            jnp.asarray(labels, rate.dtype),
            jnp.asarray(weights, rate.dtype),
        )
        model, state, value, right = _update(model, state, batch, rate, dropout, jr.fold_in(drop_key, index))
        total, hits = total + value * len(rows), hits + right
    return model, state, (float(total) / len(corpus), float(hits) / len(corpus))


def _held_out(model: LSTMClassifier, corpus: Corpus) -> tuple[float, float]:
    """Loss and accuracy without dropout."""
    values, is_positive = logits(model, corpus), corpus.labels == 1
    loss = np.mean(np.logaddexp(0, np.where(is_positive, -values, values)))
    return float(loss), float(np.mean((values > 0) == is_positive))


def _shapes(checkpoint: ClassifierCheckpoint) -> list[tuple[int, ...]]:
    return [np.shape(leaf) for leaf in jax.tree.leaves(checkpoint)]


def blocks(model: LSTMClassifier) -> dict[str, Float[Array, "gates hidden"]]:
    """The three weight blocks of shape (4N, N), by name."""
    return dict(zip(BLOCKS, (model.first.w, model.second.w_in.T, model.second.w), strict=True))


def truncate_blocks(
    initial: LSTMClassifier,
    final: LSTMClassifier,
    rank: int,
    *,
    of: Literal["change", "weights"] = "change",
    names: Sequence[str] = BLOCKS,
) -> LSTMClassifier:
    r"""The trained classifier with some blocks cut to a rank: :math:`W_0 + \Delta W^{(R)}` or
    :math:`W^{(R)}`.

    The singular value decomposition is that of the stacked block, not of each gate.
    """
    if of not in ("change", "weights"):
        raise ValueError(f"`of` must be 'change' or 'weights', got {of!r}.")
    if not set(names) <= set(BLOCKS):
        raise ValueError(f"`names` must be among {BLOCKS}, got {tuple(names)}.")
    before, after = blocks(initial), blocks(final)
    if before[BLOCKS[0]].shape != after[BLOCKS[0]].shape:
        raise ValueError(
            "`initial` and `final` must be one classifier before and after training, got "
            f"{initial.hidden} and {final.hidden} units."
        )
    for name in names:
        base = before[name] if of == "change" else jnp.zeros_like(after[name])
        after[name] = base + truncate(after[name] - base, rank)
    return eqx.tree_at(
        lambda tree: (tree.first.w, tree.second.w_in, tree.second.w),
        final,
        (after[BLOCKS[0]], after[BLOCKS[1]].T, after[BLOCKS[2]]),
    )


class Truncation(eqx.Module):
    """Accuracy of truncated classifiers, and the share of sentences on which they agree with the full one."""

    ranks: np.ndarray
    accuracy: Float[np.ndarray, " ranks"]
    agreement: Float[np.ndarray, " ranks"]

    def needed(self, agreement: float = 0.97) -> float:
        """Smallest rank from which the agreement stays at least as high; NaN if there is none."""
        is_low = np.flatnonzero(self.agreement < agreement)
        first = 0 if is_low.size == 0 else is_low[-1] + 1
        return float(self.ranks[first]) if first < len(self.ranks) else math.nan


def truncation_curve(
    initial: LSTMClassifier,
    final: LSTMClassifier,
    corpus: Corpus,
    ranks: Sequence[int],
    *,
    of: Literal["change", "weights"] = "change",
    names: Sequence[str] = BLOCKS,
) -> Truncation:
    """Accuracy and agreement on ``corpus`` when the named blocks are cut to each of ``ranks``, in rising
    order.

    Agreement is much quieter than accuracy, whose standard error is 1.4 points on 872 sentences.
    """
    if list(ranks) != sorted(set(ranks)) or not len(ranks):
        raise ValueError(f"`ranks` must rise, got {list(ranks)}.")
    full: Bool[np.ndarray, " sentences"] = logits(final, corpus) > 0
    rows = []
    for rank in ranks:
        cut = logits(truncate_blocks(initial, final, rank, of=of, names=names), corpus) > 0
        rows.append((np.mean(cut == (corpus.labels == 1)), np.mean(cut == full)))
    return Truncation(np.asarray(list(ranks)), *np.array(rows, dtype=float).T)
