"""The note's simple case: one scalar per language and layer, its flow and its closed forms."""

from ._model import Network as Network
from ._model import conserved as conserved
from ._model import gradient as gradient
from ._model import initialize as initialize
from ._model import residuals as residuals
from ._model import test_loss as test_loss
from ._model import train_loss as train_loss
from ._theory import AlignedFlow as AlignedFlow
from ._theory import EarlyFlow as EarlyFlow
from ._theory import aligned_flow as aligned_flow
from ._theory import early_flow as early_flow
from ._theory import escape_constant as escape_constant
from ._theory import regular_flow as regular_flow
from ._theory import spectral_prediction as spectral_prediction
from ._train import Run as Run
from ._train import train as train
from ._train import train_batch as train_batch
