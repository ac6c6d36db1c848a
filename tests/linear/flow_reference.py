"""Gradient flow by a tight general-purpose solver, sharing no code with the library."""

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
