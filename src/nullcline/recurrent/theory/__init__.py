"""Exact theory of learning in a linear RNN with one input and one output."""

from ._descent import Descent as Descent
from ._descent import DescentStatus as DescentStatus
from ._descent import descent as descent
from ._expansion import FirstOrder as FirstOrder
from ._expansion import Traces as Traces
from ._expansion import beyond_expansion as beyond_expansion
from ._expansion import change_factors as change_factors
from ._expansion import first_order as first_order
from ._expansion import outlier as outlier
from ._expansion import readout as readout
from ._expansion import shuffled_readout as shuffled_readout
from ._expansion import singular_values as singular_values
from ._expansion import traces as traces
from ._flow import Flow as Flow
from ._flow import FlowStatus as FlowStatus
from ._flow import InfiniteWidthFlow as InfiniteWidthFlow
from ._flow import exact_flow as exact_flow
from ._flow import infinite_width_flow as infinite_width_flow
from ._learning import Learning as Learning
from ._learning import critical_step as critical_step
from ._learning import learning as learning
from ._learning import learning_time as learning_time
from ._measure import infinite_width_network as infinite_width_network
from ._series import Series as Series
from ._series import series as series
