"""Pictures of what the rooms compute; the rooms themselves draw nothing.

Needs Matplotlib, which is imported at the first call.
"""

from typing import TYPE_CHECKING

import numpy as np

from .studies import _style as style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike

    from .recurrent import Trials


def plot_trial(
    axes: "Axes",
    inputs: np.ndarray,
    targets: np.ndarray,
    outputs: np.ndarray | None = None,
    *,
    dt: float = 1.0,
) -> None:
    """Draw one trial into ``axes``: every channel on a line of its own, inputs over outputs.

    Parameters
    ----------
    axes
        Where to draw.
    inputs, targets, outputs
        Arrays (time, channels). Put NaN where nothing is to be drawn: in channels that do not exist, and in
        targets where the loss does not look.
    dt
        Time of one step.
    """
    rows: list[tuple[str, np.ndarray, np.ndarray | None]] = []
    for channel in range(inputs.shape[1]):
        if np.isfinite(inputs[:, channel]).any():
            rows.append((f"$u_{channel + 1}$", inputs[:, channel], None))
    for channel in range(targets.shape[1]):
        if np.isfinite(targets[:, channel]).any():
            shown = None if outputs is None else outputs[:, channel]
            rows.append((f"$z_{channel + 1}$", targets[:, channel], shown))
    ticks = []
    for index, (name, line, output) in enumerate(rows):
        level = -float(index)
        ticks.append((level, name))
        time = dt * np.arange(len(line))
        is_target = name.startswith("$z")
        size = np.nanmax(np.abs(line if output is None else np.concatenate([line, output])))
        scale = 0.4 / size if size > 0 else 1.0
        axes.axhline(level, color=style.GREY, lw=0.3)
        if output is not None:
            axes.plot(time, level + scale * output, color=style.VERMILION, lw=1)
        axes.plot(
            time,
            level + scale * line,
            color=style.BLACK if is_target else style.BLUE,
            lw=1.6 if is_target else 0.8,
            alpha=0.7 if is_target else 1.0,
        )
    axes.set_yticks([level for level, _ in ticks], [name for _, name in ticks])
    axes.set(xlabel="time", ylim=(-len(rows) + 0.4, 0.6))


def plot_trials(
    trials: "Trials", *, outputs: "ArrayLike | None" = None, dt: float = 1.0, count: int = 3
) -> "Figure":
    """Draw the first ``count`` trials of a batch side by side, with the outputs of a network if given.

    Parameters
    ----------
    trials
        A :class:`nullcline.recurrent.Trials`, as ``task.sample`` gives it.
    outputs
        Outputs of a network on them, (batch, time, outputs), as ``recurrent.run`` gives them.
    dt
        Time of one step, ``task.dt``.
    count
        Number of trials to draw.

    Returns
    -------
    The figure: inputs in blue above, targets in black where the loss looks, outputs in red over them.
    """
    batch = np.shape(trials.inputs)[0]
    if outputs is not None and np.shape(outputs) != np.shape(trials.targets):
        raise ValueError(
            f"`outputs` must have the shape of the targets, {np.shape(trials.targets)}, got "
            f"{np.shape(outputs)}."
        )
    if not 1 <= count <= batch:
        raise ValueError(f"`count` must be in 1..{batch}, the number of trials, got {count}.")
    fig, axes = style.figure(1, count, height=2.6)
    targets = np.where(np.asarray(trials.mask) > 0, np.asarray(trials.targets), np.nan)
    for index in range(count):
        shown = None if outputs is None else np.asarray(outputs)[index]
        plot_trial(axes[0, index], np.asarray(trials.inputs)[index], targets[index], shown, dt=dt)
        axes[0, index].set_title(f"trial {index + 1}")
    return fig
