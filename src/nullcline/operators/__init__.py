"""The operators K and P of gradient descent in recurrent models: how an error becomes a change of dynamics.

Source: hazelden2025, with its errata. Everything starts from :func:`linearize`; operators are pytrees.
"""

from nullcline.measures import participation_ratio as participation_ratio

from ._alignment import activity_dimension as activity_dimension
from ._alignment import misdirection as misdirection
from ._alignment import operator_misdirection as operator_misdirection
from ._alignment import rayleigh as rayleigh
from ._consensus import Consensus as Consensus
from ._consensus import consensus as consensus
from ._consensus import mode_share as mode_share
from ._flow import Flow as Flow
from ._flow import linearize as linearize
from ._flow import restrict as restrict
from ._lyapunov import FiniteTimeExponents as FiniteTimeExponents
from ._lyapunov import VolterraForm as VolterraForm
from ._lyapunov import consensus_exponents as consensus_exponents
from ._lyapunov import finite_time_exponents as finite_time_exponents
from ._lyapunov import kaplan_yorke as kaplan_yorke
from ._lyapunov import lyapunov as lyapunov
from ._lyapunov import transition_matrices as transition_matrices
from ._lyapunov import volterra_form as volterra_form
from ._lyapunov import volterra_singular_values as volterra_singular_values
from ._operator import AbstractOperator as AbstractOperator
from ._rank import EffectiveRank as EffectiveRank
from ._rank import Estimate as Estimate
from ._rank import effective_rank as effective_rank
from ._rank import total_variance as total_variance
from ._spectrum import Spectrum as Spectrum
from ._spectrum import spectrum as spectrum
from ._tasks import Interference as Interference
from ._tasks import interference as interference
from ._tasks import rayleigh_matrix as rayleigh_matrix
from ._tasks import state_cosine as state_cosine
from ._torch import from_torch as from_torch
from ._torch_layers import from_state_dict as from_state_dict
