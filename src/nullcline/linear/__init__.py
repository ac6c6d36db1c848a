r"""Two-layer linear networks: tasks, initial weights, exact learning dynamics, simulation and observables.

Notation of anguita2024 and domine2025: weights :math:`W_1` (hidden, inputs) and :math:`W_2`
(outputs, hidden), loss :math:`\|W_2W_1X - Y\|_F^2/(2P)`, balance :math:`W_2^\top W_2 - W_1W_1^\top`.
"""

from ._autoencoder import AlignedFlow as AlignedFlow
from ._autoencoder import aligned_flow as aligned_flow
from ._autoencoder import autoencoder_task as autoencoder_task
from ._balance_tables import ExpectedBalance as ExpectedBalance
from ._balance_tables import expected_balance as expected_balance
from ._balance_tables import expected_lambda_limit as expected_lambda_limit
from ._depth import LayerFlow as LayerFlow
from ._depth import deep_mode_flow as deep_mode_flow
from ._depth import layer_flow as layer_flow
from ._exact import exact_flow as exact_flow
from ._exact import observe_flow as observe_flow
from ._init import aligned as aligned
from ._init import gaussian as gaussian
from ._init import lambda_balanced as lambda_balanced
from ._limits import State as State
from ._limits import can_converge as can_converge
from ._limits import converged_state as converged_state
from ._limits import lazy_limit as lazy_limit
from ._limits import limit as limit
from ._limits import rotation_time as rotation_time
from ._lora import LoraFlow as LoraFlow
from ._lora import lora_flow as lora_flow
from ._modes import Modes as Modes
from ._modes import mode_flow as mode_flow
from ._network import Network as Network
from ._network import balance as balance
from ._network import balance_distance as balance_distance
from ._network import balance_residual as balance_residual
from ._network import fitted_lambda as fitted_lambda
from ._nonlinear import NonlinearDescent as NonlinearDescent
from ._nonlinear import nonlinear_descent as nonlinear_descent
from ._nonlinear import nonlinear_loss as nonlinear_loss
from ._observables import Similarity as Similarity
from ._observables import Specificity as Specificity
from ._observables import loss as loss
from ._observables import ntk as ntk
from ._observables import ntk_distance as ntk_distance
from ._observables import ntk_inner as ntk_inner
from ._observables import rsm as rsm
from ._observables import task_specific_score as task_specific_score
from ._sequence import Sequence as Sequence
from ._sequence import exact_sequence as exact_sequence
from ._sequence import forgetting as forgetting
from ._sequence import loss_rate as loss_rate
from ._shallow import function_loss as function_loss
from ._shallow import shallow_flow as shallow_flow
from ._simulate import gradient_descent as gradient_descent
from ._simulate import integrate_flow as integrate_flow
from ._task import Task as Task
from ._task import random_regression as random_regression
from ._task import semantic_hierarchy as semantic_hierarchy
from ._task import whiten as whiten
from ._trajectory import STATUS as STATUS
from ._trajectory import Trajectory as Trajectory
from ._weights import Weights as Weights
from ._weights import exact_weights as exact_weights
