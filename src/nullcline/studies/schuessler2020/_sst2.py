"""The sentences of Figures 5 and S6, which the user supplies, and the classifier trained on them.

``NULLCLINE_DATA`` (or ``--data``) names a folder with ``train.txt``, ``dev.txt`` and ``test.txt``, or one
with a folder ``sst2`` that has them. A line is ``LABEL TOKEN TOKEN ...``: label 1 (positive) or 0, then
tokens split by spaces. If a file ``glove*.txt`` lies beside them, its word vectors are used, otherwise
vectors computed from ``train.txt``.
"""

import functools
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from .._lazy import jr, lazily

recurrent = lazily("nullcline.recurrent")

FILES = ("train.txt", "dev.txt", "test.txt")
WIDTH = 100
KINDS = ("initial", "final", "change")


def folder() -> Path | None:
    """Folder with the three files, if there is one."""
    name = os.environ.get("NULLCLINE_DATA")
    places = [] if not name else [Path(name), Path(name) / "sst2"]
    return next((place for place in places if all((place / file).is_file() for file in FILES)), None)


def missing() -> str:
    """Say what is missing, and what to do."""
    if folder() is not None:
        return ""
    name = os.environ.get("NULLCLINE_DATA")
    found = f"{name} (NULLCLINE_DATA) does not hold them" if name else "no folder was named"
    return (
        f"it needs the sentences of SST-2, and {found}. Put train.txt, dev.txt and test.txt (lines "
        "`LABEL TOKEN TOKEN ...`, label 0 or 1) into a folder and name it with --data DIR or NULLCLINE_DATA."
    )


def supplied() -> str:
    """Digest of the sentences and word vectors that the study would be computed from."""
    place = folder()
    if place is None:
        return ""
    files = [*(place / name for name in FILES), *_glove(place)]
    return _digest(tuple((path, (stat := path.stat()).st_size, stat.st_mtime_ns) for path in files))


@functools.lru_cache(maxsize=4)
def _digest(files: tuple[tuple[Path, int, int], ...]) -> str:
    """One name for the content of files, read again only when their size or time of change differs."""
    parts = []
    for path, _, _ in files:
        with path.open("rb") as file:
            parts.append(hashlib.file_digest(file, "sha256").hexdigest())
    return hashlib.sha256("".join(parts).encode()).hexdigest()


def _glove(place: Path) -> list[Path]:
    """Word vectors beside the sentences: the first file of that name, if any."""
    return sorted(place.glob("glove*.txt"))[:1]


def _corpora():
    place = folder()
    if place is None:
        raise ValueError(f"This study cannot run: {missing()}")
    sentences = [recurrent.read_sentences((place / name).read_text("utf-8").splitlines()) for name in FILES]
    glove = _glove(place)
    if glove:
        vocabulary = {token for part in sentences for _, tokens in part for token in tokens}
        with glove[0].open(encoding="utf-8") as lines:
            words = recurrent.read_word_vectors(lines, vocabulary, width=WIDTH)
    else:
        words = recurrent.ppmi_vectors(sentences[0], width=WIDTH)
    train, dev, held = (
        recurrent.encode(part, words) for part in (sentences[0], sentences[1], sentences[1] + sentences[2])
    )
    return words, train, dev, held


def trained(hidden: int, epochs: int, rate: float, seed: int) -> Mapping[str, np.ndarray]:
    """Train the classifier and cut its blocks; Figures 5 and S6 show the same network."""
    return _trained_on(supplied(), hidden, epochs, rate, seed)


@functools.lru_cache(maxsize=4)
def _trained_on(_: str, hidden: int, epochs: int, rate: float, seed: int) -> Mapping[str, np.ndarray]:
    words, train, dev, held = _corpora()
    key = jr.fold_in(jr.key(5), seed)
    model = recurrent.lstm_classifier(words, hidden, key=jr.fold_in(key, 0))
    result = recurrent.train_classifier(
        model, train, held_out=dev, epochs=epochs, learning_rate=rate / hidden, key=jr.fold_in(key, 1)
    )
    initial, final = result.initial, result.final
    # Fine steps where the change is cut, coarse ones where the whole weights need most of their ranks.
    fine = [*range(17), *range(20, 33, 4), *range(40, hidden, max(hidden // 8, 8)), hidden]
    fine = sorted({rank for rank in fine if rank <= hidden})
    coarse = sorted({*range(0, hidden + 1, max(hidden // 16, 1)), hidden})
    of_change = recurrent.truncation_curve(initial, final, held, fine, of="change")
    of_weights = recurrent.truncation_curve(initial, final, held, coarse, of="weights")
    before, after = _matrices(initial), _matrices(final)
    change = {name: after[name] - before[name] for name in MATRICES}
    return {
        "loss": result.losses,
        "accuracy": result.accuracies,
        "dev_loss": result.held_out_losses,
        "dev_accuracy": result.held_out_accuracies,
        "full_accuracy": np.asarray(recurrent.accuracy(final, held)),
        "coverage": np.asarray(train.coverage),
        "needed_change": np.asarray(of_change.needed()),
        "needed_weights": np.asarray(of_weights.needed()),
        "change_accuracy": _on_ranks(of_change, of_change.accuracy, hidden),
        "change_agreement": _on_ranks(of_change, of_change.agreement, hidden),
        "weights_accuracy": _on_ranks(of_weights, of_weights.accuracy, hidden),
        "weights_agreement": _on_ranks(of_weights, of_weights.agreement, hidden),
        "singular_values": np.stack(
            [[_values(part[name], hidden) for name in MATRICES] for part in (before, after, change)]
        ),
    }


MATRICES = ("layer 1 input", "layer 1 recurrent", "layer 2 input", "layer 2 recurrent")


def _matrices(model) -> dict[str, np.ndarray]:
    weights = (model.first.w_in, model.first.w, model.second.w_in, model.second.w)
    return dict(zip(MATRICES, (np.asarray(w, dtype=float) for w in weights), strict=True))


def _values(matrix: np.ndarray, hidden: int) -> np.ndarray:
    """Leading singular values, as many as every matrix has."""
    return np.linalg.svd(matrix, compute_uv=False)[: min(hidden, 64)]


def _on_ranks(curve, values: np.ndarray, hidden: int) -> np.ndarray:
    """Values at the ranks computed, NaN at the others, over 0..hidden."""
    room = np.full(hidden + 1, np.nan)
    room[curve.ranks] = values
    return room
