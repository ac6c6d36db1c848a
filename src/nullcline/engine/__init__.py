"""Grids of points, executors, the result store and the report. Knows nothing of physics."""

from ._run import run as run
from ._study import Claim as Claim
from ._study import Grid as Grid
from ._study import Study as Study
