"""Grids of points, executors, the result store and the report. Knows nothing of physics."""

from ._child import WorkerError as WorkerError
from ._environment import computing as computing
from ._executors import Executor as Executor
from ._outcome import Outcome as Outcome
from ._outcome import plural as plural
from ._plan import Plan as Plan
from ._plan import make_plan as make_plan
from ._progress import duration as duration
from ._progress import progress_on_stderr as progress_on_stderr
from ._report import outcomes_in as outcomes_in
from ._report import tally as tally
from ._report import write_report as write_report
from ._reproduce import Shard as Shard
from ._reproduce import cheapest_first as cheapest_first
from ._reproduce import reproduce as reproduce
from ._run import FailedPointsWarning as FailedPointsWarning
from ._run import run as run
from ._store import StoreError as StoreError
from ._study import Claim as Claim
from ._study import Grid as Grid
from ._study import Study as Study
from ._sweep import open_sweep as open_sweep
