"""Sentences with labels, and vectors for their words; text comes in as lines, no file is opened here.

A line of a corpus is ``LABEL TOKEN TOKEN ...``: label 1 (positive) or 0 (negative), tokens already split, one
space between them. A line of word vectors is ``WORD NUMBER NUMBER ...``, the text format of GloVe.
"""

from collections.abc import Iterable, Mapping, Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._checks import require_size

Sentence = tuple[int, tuple[str, ...]]


class WordVectors(eqx.Module):
    """Vectors of words; row 0 is the zero vector of padding and of unknown words."""

    vectors: Float[Array, "words width"]
    index: Mapping[str, int] = eqx.field(static=True)


class Corpus(eqx.Module):
    """Sentences as indices of words, padded with 0.

    ``coverage`` is the share of tokens that have a vector.
    """

    tokens: Int[np.ndarray, "sentences time"]
    lengths: Int[np.ndarray, " sentences"]
    labels: Int[np.ndarray, " sentences"]
    coverage: float = eqx.field(static=True)

    def __len__(self) -> int:
        return len(self.labels)


def read_sentences(lines: Iterable[str]) -> list[Sentence]:
    """Parse lines of a corpus; blank lines are skipped."""
    sentences = []
    for number, line in enumerate(lines, start=1):
        fields = line.split()
        if not fields:
            continue
        if fields[0] not in ("0", "1") or len(fields) < 2:
            raise ValueError(
                f"Line {number} of the corpus is {line.strip()[:60]!r}; expected `LABEL TOKEN TOKEN ...` "
                "with the label 0 or 1 and at least one token."
            )
        sentences.append((int(fields[0]), tuple(fields[1:])))
    if not sentences:
        raise ValueError("The corpus has no sentences; expected lines `LABEL TOKEN TOKEN ...`.")
    return sentences


def read_word_vectors(lines: Iterable[str], words: Iterable[str], *, width: int = 100) -> WordVectors:
    """Parse a GloVe text file, keeping the vectors of ``words``."""
    wanted, rows, index = set(words), [np.zeros(width)], {}
    for number, line in enumerate(lines, start=1):
        word, *numbers = line.rstrip("\n").split(" ")
        if len(numbers) != width:
            raise ValueError(
                f"Line {number} of the word vectors has {len(numbers)} numbers, expected width = {width}."
            )
        if word in wanted and word not in index:
            index[word] = len(rows)
            try:
                rows.append(np.array(numbers, dtype=float))
            except ValueError:
                raise ValueError(
                    f"Line {number} of the word vectors, {line.strip()[:60]!r}, holds something that is not "
                    "a number; expected `WORD NUMBER NUMBER ...`, split by single spaces."
                ) from None
    return WordVectors(jnp.asarray(np.stack(rows), jnp.float32), index)


def ppmi_vectors(sentences: Sequence[Sentence], *, width: int = 100, window: int = 5) -> WordVectors:
    r"""Word vectors from the text itself: positive pointwise mutual information, cut by a singular value
    decomposition.

    Co-occurrences in a symmetric window are weighted by 1/distance, context counts raised to 0.75; the
    vectors are :math:`U S^{1/2}`, scaled so that their root-mean-square norm is 5 (that of GloVe is 5.7).

    Parameters
    ----------
    sentences
        The training text.
    width
        Length of a vector; must be below the number of words.
    window
        Largest distance of two tokens that counts.
    """
    from scipy import sparse
    from scipy.sparse import linalg

    index: dict[str, int] = {}
    for _, tokens in sentences:
        for token in tokens:
            index.setdefault(token, len(index))
    if not 1 <= width < len(index):
        raise ValueError(f"`width` must be in 1..{len(index) - 1}, below the number of words, got {width}.")
    require_size("window", window)
    text = [np.array([index[token] for token in tokens]) for _, tokens in sentences]
    left = [ids[:-gap] for gap in range(1, window + 1) for ids in text if len(ids) > gap]
    right = [ids[gap:] for gap in range(1, window + 1) for ids in text if len(ids) > gap]
    weight = [1 / gap for gap in range(1, window + 1) for ids in text for _ in range(len(ids) - gap)]
    counts = sparse.coo_matrix(
        (np.array(weight), (np.concatenate(left), np.concatenate(right))), shape=(len(index),) * 2
    ).tocsr()
    counts = (counts + counts.T).tocoo()
    total = np.asarray(counts.sum(axis=1)).ravel()
    context = total**0.75
    context = context / context.sum()
    information = np.log(counts.data / (total[counts.row] * context[counts.col]))
    ppmi = sparse.coo_matrix(
        (np.maximum(information, 0), (counts.row, counts.col)), shape=counts.shape
    ).tocsr()
    # A fixed start makes the iterative decomposition the same on every call.
    u, s, _ = (np.asarray(part) for part in linalg.svds(ppmi, k=width, v0=np.ones(len(index))))
    order = np.argsort(-s)
    vectors = u[:, order] * np.sqrt(s[order])
    # The sign of a singular vector is arbitrary; its largest entry is made positive.
    vectors = vectors * np.sign(vectors[np.argmax(np.abs(vectors), axis=0), np.arange(width)])
    vectors = vectors * (5 / np.sqrt(np.mean(np.sum(vectors**2, axis=1))))
    vectors = np.concatenate([np.zeros((1, width)), vectors])
    return WordVectors(jnp.asarray(vectors, jnp.float32), {word: row + 1 for word, row in index.items()})


def encode(sentences: Sequence[Sentence], words: WordVectors) -> Corpus:
    """Turn sentences into indices of word vectors."""
    if not sentences:
        raise ValueError("`sentences` is empty; give at least one.")
    lengths = np.array([len(tokens) for _, tokens in sentences])
    tokens = np.zeros((len(sentences), lengths.max()), dtype=np.int32)
    for row, (_, sentence) in enumerate(sentences):
        tokens[row, : len(sentence)] = [words.index.get(token, 0) for token in sentence]
    return Corpus(
        tokens=tokens,
        lengths=lengths,
        labels=np.array([label for label, _ in sentences]),
        coverage=float(np.count_nonzero(tokens) / lengths.sum()),
    )
