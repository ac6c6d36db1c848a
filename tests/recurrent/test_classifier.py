"""The LSTM classifier against PyTorch, its training on a corpus made here, and the words it reads."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from nullcline import recurrent

torch = pytest.importorskip("torch")

GOOD, BAD, PLAIN = ["good", "fine", "bright"], ["bad", "dull", "grim"], [f"w{i}" for i in range(12)]


def corpus_lines(count, seed, longest=11):
    """Sentences whose label is that of their one telling word; up to 12 tokens are one bucket."""
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(count):
        label = int(rng.integers(2))
        tokens = list(rng.choice(PLAIN, size=rng.integers(2, longest + 1)))
        tokens[rng.integers(len(tokens))] = str(rng.choice(GOOD if label else BAD))
        lines.append(f"{label} " + " ".join(tokens))
    return lines


@pytest.fixture(scope="module")
def data():
    sentences = recurrent.read_sentences(corpus_lines(300, 0))
    words = recurrent.ppmi_vectors(sentences, width=10)
    held = recurrent.encode(recurrent.read_sentences(corpus_lines(100, 1)), words)
    return words, recurrent.encode(sentences, words), held


@pytest.fixture(scope="module")
def trained(data):
    words, train, held = data
    model = recurrent.lstm_classifier(words, 12, key=jr.key(0))
    return recurrent.train_classifier(
        model, train, held_out=held, epochs=6, learning_rate=0.02, dropout=0.2, key=jr.key(1)
    )


def test_logits_agree_with_torch(data):
    words, _, _ = data
    held = recurrent.encode(recurrent.read_sentences(corpus_lines(40, 1, longest=20)), words)
    assert held.lengths.min() <= 12 < held.lengths.max()  # two buckets
    model = recurrent.lstm_classifier(words, 8, key=jr.key(3))
    lstm = torch.nn.LSTM(10, 8, num_layers=2, dtype=torch.float64)
    with torch.no_grad():
        for name, layer in (("l0", model.first), ("l1", model.second)):
            for field, value in (
                ("weight_ih", layer.w_in.T),
                ("weight_hh", layer.w),
                ("bias_ih", layer.b_in),
                ("bias_hh", layer.b),
            ):
                getattr(lstm, f"{field}_{name}").copy_(torch.tensor(np.array(value, dtype=float)))
        ours = recurrent.logits(model, held, batch_size=16)
        for row in range(12):
            ids = held.tokens[row, : held.lengths[row]]
            states, _ = lstm(torch.tensor(np.array(words.vectors[ids], dtype=float)))
            expected = states[-1].numpy() @ np.array(model.w_out) + np.array(model.b_out)
            # Float32 against float64 over at most 20 steps.
            np.testing.assert_allclose(ours[row], expected, rtol=1e-4, atol=1e-5)


def test_gradient_of_the_recurrent_weights_is_autodiff():
    """The product over time and batch against the gradient of a plain scan."""
    from nullcline.recurrent._classifier import _recur, _scan

    w, drive = jr.normal(jr.key(0), (12, 3)), jr.normal(jr.key(1), (5, 2, 12))
    weights = jr.normal(jr.key(2), (5, 2, 3))
    ours = jax.jit(jax.grad(lambda *a: jnp.sum(weights * _recur(*a)), argnums=(0, 1)))(w, drive)
    plain = jax.jit(jax.grad(lambda *a: jnp.sum(weights * _scan(*a)), argnums=(0, 1)))(w, drive)
    for a, b in zip(ours, plain, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-14)


def test_training_learns_and_leaves_the_words_alone(data, trained):
    assert trained.flags == ()
    assert trained.accuracies[-1] > 0.9 and trained.held_out_accuracies[-1] > 0.9
    assert trained.losses[-1] < 0.5 * trained.losses[0]
    np.testing.assert_array_equal(trained.final.vectors, trained.initial.vectors)
    assert recurrent.accuracy(trained.final, data[2]) == trained.held_out_accuracies[-1]


def test_stopped_training_resumes_to_the_same_numbers(data, trained, tmp_path):
    """Stop, write the checkpoint to a file, read it into a fresh form, go on: bit for bit the whole run."""
    words, train, held = data
    model = recurrent.lstm_classifier(words, 12, key=jr.key(0))
    settings = {"held_out": held, "epochs": 6, "learning_rate": 0.02, "dropout": 0.2, "key": jr.key(1)}
    seen = []

    def report(checkpoint):
        seen.append(checkpoint.loss)
        eqx.tree_serialise_leaves(tmp_path / "classifier.eqx", checkpoint)
        return int(checkpoint.epoch) == 4

    stopped = recurrent.train_classifier(model, train, **settings, report=report)
    assert stopped.flags == ("stopped",) and seen == list(trained.losses[:4])
    assert np.isnan(stopped.losses[4:]).all()
    form = recurrent.first_classifier_checkpoint(model, epochs=6)
    checkpoint = eqx.tree_deserialise_leaves(tmp_path / "classifier.eqx", form)
    resumed = recurrent.train_classifier(model, train, **settings, resume=checkpoint)
    for ours, theirs in zip(jax.tree.leaves(resumed), jax.tree.leaves(trained), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    with pytest.raises(ValueError, match="`resume` does not belong to this training"):
        recurrent.train_classifier(model, train, **settings | {"epochs": 5}, resume=checkpoint)


def test_blocks_are_cut_together(data, trained):
    initial, final = trained.initial, trained.final
    for of in ("change", "weights"):
        cut = recurrent.truncate_blocks(initial, final, 2, of=of)
        base = recurrent.blocks(initial) if of == "change" else dict.fromkeys(recurrent.BLOCKS, 0.0)
        for name, block in recurrent.blocks(cut).items():
            assert block.shape == (48, 12)
            assert np.linalg.matrix_rank(np.array(block - base[name], dtype=float), tol=1e-4) == 2
    only = recurrent.truncate_blocks(initial, final, 0, names=["layer 2 input"])
    np.testing.assert_allclose(only.second.w_in, initial.second.w_in, atol=1e-6)
    np.testing.assert_array_equal(only.second.w, final.second.w)
    whole = recurrent.truncate_blocks(initial, final, 12)
    np.testing.assert_allclose(whole.second.w, final.second.w, atol=1e-5)


def test_truncation_curve(data, trained):
    initial, final = trained.initial, trained.final
    curve = recurrent.truncation_curve(initial, final, data[2], [0, 4, 12])
    assert curve.agreement[-1] == 1.0
    assert curve.accuracy[-1] == recurrent.accuracy(final, data[2])
    cut = recurrent.truncate_blocks(initial, final, 4)
    assert curve.accuracy[1] == recurrent.accuracy(cut, data[2])


@pytest.mark.parametrize(
    ("agreement", "needed"), [([0.5, 0.99, 0.9, 0.98, 1.0], 3), ([1.0] * 5, 0), ([1.0] * 4 + [0.5], np.nan)]
)
def test_needed_rank_is_where_agreement_stays(agreement, needed):
    curve = recurrent.Truncation(np.arange(5), np.zeros(5), np.array(agreement))
    np.testing.assert_equal(curve.needed(0.97), float(needed))


def test_divergence_is_flagged(data):
    words, train, held = data
    model = recurrent.lstm_classifier(words, 12, key=jr.key(0))
    broken = eqx.tree_at(lambda m: m.b_out, model, jnp.asarray(jnp.nan, jnp.float32))
    result = recurrent.train_classifier(broken, train, held_out=held, epochs=1, dropout=0.2, key=jr.key(1))
    assert result.flags == ("diverged",) and np.isnan(result.losses).all()


def test_ppmi_vectors_by_hand():
    """A text small enough to count: vectors reproduce the positive mutual information to the rank kept."""
    sentences = recurrent.read_sentences(["1 a b c a b", "0 c d d a", "1 b d"])
    index = {"a": 0, "b": 1, "c": 2, "d": 3}
    counts = np.zeros((4, 4))
    for _, tokens in sentences:
        for i in range(len(tokens)):
            for j in range(len(tokens)):
                if 0 < abs(i - j) <= 2:
                    counts[index[tokens[i]], index[tokens[j]]] += 1 / abs(i - j)
    total = counts.sum(axis=1)
    context = total**0.75 / np.sum(total**0.75)
    with np.errstate(divide="ignore"):
        ppmi = np.maximum(np.log(counts / (total[:, None] * context[None, :])), 0)
    u, s, _ = np.linalg.svd(ppmi)
    expected = u[:, :2] * np.sqrt(s[:2])
    expected *= 5 / np.sqrt(np.mean(np.sum(expected**2, axis=1)))
    words = recurrent.ppmi_vectors(sentences, width=2, window=2)
    ours = np.array(words.vectors)[[words.index[w] for w in "abcd"]]
    # Signs of the columns are free: compare inner products between words.
    np.testing.assert_allclose(ours @ ours.T, expected @ expected.T, rtol=1e-5, atol=1e-5)
    assert not np.any(words.vectors[0])


def test_glove_reader_and_coverage():
    sentences = recurrent.read_sentences(["1 a b c", "0 a z"])
    words = recurrent.read_word_vectors(["a 1 2\n", "q 9 9\n", "b 3 4\n"], {"a", "b", "c", "z"}, width=2)
    np.testing.assert_array_equal(words.vectors, [[0, 0], [1, 2], [3, 4]])
    corpus = recurrent.encode(sentences, words)
    np.testing.assert_array_equal(corpus.tokens, [[1, 2, 0], [1, 0, 0]])
    assert corpus.coverage == 3 / 5
    with pytest.raises(ValueError, match="Line 1 of the word vectors has 2 numbers, expected width = 3"):
        recurrent.read_word_vectors(["a 1 2\n"], {"a"}, width=3)
    with pytest.raises(ValueError, match="Line 2 of the word vectors, 'b 1 x', holds something that is not"):
        recurrent.read_word_vectors(["a 1 2\n", "b 1 x\n"], {"b"}, width=2)


def test_low_coverage_is_flagged(data):
    words, _, held = data
    few = recurrent.WordVectors(words.vectors, {w: i for w, i in words.index.items() if w not in PLAIN})
    sparse = recurrent.encode(recurrent.read_sentences(corpus_lines(64, 2)), few)
    model = recurrent.lstm_classifier(words, 12, key=jr.key(0))
    result = recurrent.train_classifier(model, sparse, held_out=held, epochs=1, dropout=0.2, key=jr.key(0))
    assert result.flags == ("low_coverage",)


def test_refusals(data, trained):
    _, train, held = data
    for line in ("2 a b", "1", "good film"):
        with pytest.raises(ValueError, match=r"Line 1 of the corpus is .* expected `LABEL TOKEN TOKEN"):
            recurrent.read_sentences([line])
    with pytest.raises(ValueError, match="The corpus has no sentences"):
        recurrent.read_sentences([" \n"])
    with pytest.raises(ValueError, match="`width` must be in"):
        recurrent.ppmi_vectors([(1, ("a", "b"))], width=2)
    model = trained.final
    with pytest.raises(ValueError, match="word vectors have width 7, the first layer takes 10"):
        recurrent.LSTMClassifier(model.first, model.second, model.w_out, model.b_out, jnp.zeros((3, 7)))
    with pytest.raises(ValueError, match=r"`dropout` must be in \[0, 1\), got 1.0"):
        recurrent.train_classifier(model, train, held_out=held, epochs=1, dropout=1.0, key=jr.key(0))
    with pytest.raises(ValueError, match=r"`corpus` refers to word 18, the model has vectors of 5"):
        recurrent.logits(eqx.tree_at(lambda m: m.vectors, model, model.vectors[:5]), train)
    with pytest.raises(ValueError, match="`ranks` must rise"):
        recurrent.truncation_curve(model, model, held, [2, 1])
