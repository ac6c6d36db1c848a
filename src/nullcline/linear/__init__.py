r"""Two-layer linear networks: tasks, initial weights, exact learning dynamics, simulation and observables.

Notation of anguita2024 and domine2025: weights :math:`W_1` (hidden, inputs) and :math:`W_2`
(outputs, hidden), loss :math:`\|W_2W_1X - Y\|_F^2/(2P)`, balance :math:`W_2^\top W_2 - W_1W_1^\top`.
"""

from ._balance_tables import ExpectedBalance as ExpectedBalance
from ._balance_tables import expected_balance as expected_balance
from ._balance_tables import expected_lambda_limit as expected_lambda_limit
from ._depth import LayerFlow as LayerFlow
from ._depth import deep_mode_flow as deep_mode_flow
from ._depth import layer_flow as layer_flow
from ._init import aligned as aligned
from ._init import gaussian as gaussian
from ._init import lambda_balanced as lambda_balanced
from ._modes import Modes as Modes
from ._modes import mode_flow as mode_flow
from ._network import Network as Network
from ._network import balance as balance
from ._network import balance_distance as balance_distance
from ._network import balance_residual as balance_residual
from ._network import fitted_lambda as fitted_lambda
from ._task import Task as Task
from ._task import random_regression as random_regression
from ._task import semantic_hierarchy as semantic_hierarchy
from ._task import whiten as whiten
from ._trajectory import STATUS as STATUS
from ._trajectory import Trajectory as Trajectory
