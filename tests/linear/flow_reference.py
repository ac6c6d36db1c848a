"""Balanced weights, and their gradient flow by a tight general-purpose solver: no code of the library."""

import numpy as np
from scipy.integrate import solve_ivp


def integrate_weights(w1, w2, sigma_yx, sigma_xx, times, rtol=1e-11):
    """Weights (w1, w2) at each time; the solver stops at every one of them."""
    w1, w2, sigma_yx, sigma_xx = (np.asarray(x) for x in (w1, w2, sigma_yx, sigma_xx))
    first, size = w1.size, w1.size + w2.size

    def field(t, state):
        a, b = state[:first].reshape(w1.shape), state[first:size].reshape(w2.shape)
        residual = sigma_yx - b @ a @ sigma_xx
        return np.concatenate([(b.T @ residual).ravel(), (residual @ a.T).ravel()])

    state, now, path = np.concatenate([w1.ravel(), w2.ravel()]), 0.0, []
    for time in np.asarray(times):
        if time > now:
            state = solve_ivp(field, (now, time), state, method="DOP853", rtol=rtol, atol=1e-14).y[:, -1]
            now = time
        path.append((state[:first].reshape(w1.shape), state[first:size].reshape(w2.shape)))
    return path


def stacked(w1, w2):
    """The state QQᵀ."""
    q = np.concatenate([w1.T, w2])
    return q @ q.T


def balanced_weights(sizes, lam, rank):
    """W1 = R S1 Vᵀ and W2 = U S2 Rᵀ with s2² − s1² = λ on `rank` hidden directions."""
    n_in, n_hidden, n_out = sizes
    rng = np.random.default_rng(0)
    u, v, r = (np.linalg.qr(rng.normal(size=(n, n)))[0] for n in (n_out, n_in, n_hidden))
    a = np.zeros(rank)
    a[: min(n_in, n_out, rank)] = rng.uniform(0.3, 1.2, size=min(n_in, n_out, rank))
    first, second = (np.sqrt((np.sqrt(lam**2 + 4 * a**2) + sign * lam) / 2) for sign in (-1, 1))
    s1, s2 = np.zeros((n_hidden, n_in)), np.zeros((n_out, n_hidden))
    np.fill_diagonal(s1[:rank], first[:n_in])
    np.fill_diagonal(s2[:, :rank], second[:n_out])
    return r @ s1 @ v.T, u @ s2 @ r.T


def off(a, b):
    """Relative distance of two arrays."""
    return float(np.linalg.norm(np.asarray(a) - np.asarray(b)) / np.linalg.norm(np.asarray(b)))
