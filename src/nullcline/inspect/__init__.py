"""What training did to a recurrent network: two checkpoints in, a report out.

The command ``nullcline inspect`` is :func:`inspect`; its steps can be called one by one.
"""

from ._checkpoint import Network as Network
from ._checkpoint import read_inputs as read_inputs
from ._checkpoint import read_network as read_network
from ._figures import figures as figures
from ._measure import compare as compare
from ._write import inspect as inspect
