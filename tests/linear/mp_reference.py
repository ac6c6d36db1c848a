"""The closed form in many digits, by two routes that share nothing with the library's arithmetic."""

import mpmath as mp
import numpy as np


def _eigen(w1, w2, sigma, lam):
    n_out, n_in = sigma.shape
    n = n_in + n_out
    f = mp.zeros(n, n)
    for i in range(n):
        f[i, i] = (-lam if i < n_in else lam) / mp.mpf(2)
    for o in range(n_out):
        for i in range(n_in):
            f[n_in + o, i] = f[i, n_in + o] = mp.mpf(float(sigma[o, i]))
    values, vectors = mp.eigsy(f)
    q = mp.matrix(np.concatenate([np.asarray(w1).T, np.asarray(w2)]).tolist())
    return values, vectors, vectors.T * q


def _phi(rate, t):
    return t if rate == 0 else mp.expm1(2 * rate * t) / (2 * rate)


def direct_state(w1, w2, sigma, lam, t):
    """The formula as it stands, with enough digits for its cancellation: 60 + 2 l t / ln 10."""
    rough = np.hypot(np.linalg.norm(sigma, 2), lam / 2)
    with mp.workdps(60 + int(2 * rough * t)):
        values, vectors, y = _eigen(w1, w2, sigma, mp.mpf(float(lam)))
        t, hidden = mp.mpf(float(t)), y.cols
        inner = mp.eye(hidden)
        grown = mp.zeros(y.rows, hidden)
        for j in range(y.rows):
            factor, phi = mp.exp(values[j] * t), _phi(values[j], t)
            for a in range(hidden):
                grown[j, a] = factor * y[j, a]
                for b in range(hidden):
                    inner[a, b] += phi * y[j, a] * y[j, b]
        state = grown * mp.inverse(inner) * grown.T
        return _numbers(vectors * state * vectors.T)


def pivoted_state(w1, w2, sigma, lam, t, digits=60):
    """Column reduction of the scaled stack with complete pivoting: any time: exponents are unbounded."""
    with mp.workdps(digits):
        values, vectors, y = _eigen(w1, w2, sigma, mp.mpf(float(lam)))
        t, rows, hidden = mp.mpf(float(t)), y.rows, y.cols
        stack = [[mp.sqrt(_phi(values[j], t)) * y[j, a] for a in range(hidden)] for j in range(rows)]
        stack += [[mp.mpf(int(a == b)) for a in range(hidden)] for b in range(hidden)]
        free_rows, free_columns = set(range(len(stack))), set(range(hidden))
        for _ in range(hidden):
            row, column = max(
                ((r, c) for r in free_rows for c in free_columns), key=lambda rc: abs(stack[rc[0]][rc[1]])
            )
            pivot = stack[row][column]
            ratios = [entry / pivot for entry in stack[row]]
            for index, line in enumerate(stack):
                value = line[column]
                for a in range(hidden):
                    if a == column:
                        line[a] = value / pivot
                    else:
                        line[a] = mp.mpf(0) if index == row else line[a] - value * ratios[a]
            free_rows.remove(row)
            free_columns.remove(column)
        x = mp.matrix(stack)
        # e^{lt} y is the scaled row times e^{lt}/√φ; reduced on its own it would cancel to noise.
        e = mp.matrix(rows, hidden)
        for j in range(rows):
            ratio = mp.exp(values[j] * t) / mp.sqrt(_phi(values[j], t)) if t > 0 else 0
            for a in range(hidden):
                e[j, a] = ratio * x[j, a]
        state = e * mp.inverse(x.T * x) * e.T
        return _numbers(vectors * state * vectors.T)


def _numbers(matrix):
    return np.array([[float(matrix[i, j]) for j in range(matrix.cols)] for i in range(matrix.rows)])


def block_errors(state, reference, n_in):
    """Largest error of each block of the state, relative to the norm of that block."""
    blocks = (np.s_[:n_in, :n_in], np.s_[n_in:, :n_in], np.s_[n_in:, n_in:])
    errors = []
    for block in blocks:
        size = np.linalg.norm(reference[block])
        errors.append(np.linalg.norm(state[block] - reference[block]) / size if size > 0 else np.nan)
    return errors
