"""Gated deep linear networks over language pairs: masks, training, theory.

In the notation of the shared-representations note, corrected: ``L`` languages, ``D`` words, ``H`` hidden
units, initial scale σ, ``T`` trained pairs; ``mask[o, i]`` is True where input ``i`` -> output ``o`` is
trained.
"""

from . import scalar as scalar
from ._connectivity import Connectivity as Connectivity
from ._connectivity import connectivity as connectivity
from ._loss import Losses as Losses
from ._loss import gradient as gradient
from ._loss import losses as losses
from ._loss import pair_losses as pair_losses
from ._loss import test_loss as test_loss
from ._loss import train_loss as train_loss
from ._masks import MaskWarning as MaskWarning
from ._masks import as_mask as as_mask
from ._masks import bernoulli_mask as bernoulli_mask
from ._masks import circulant_mask as circulant_mask
from ._masks import nested_mask as nested_mask
from ._masks import nested_masks as nested_masks
from ._network import Network as Network
from ._network import conserved as conserved
from ._network import decoupled_network as decoupled_network
from ._network import fold as fold
from ._network import initialize as initialize
from ._network import permutation_matrices as permutation_matrices
from ._network import unfold as unfold
from ._theory import BernoulliSpectrum as BernoulliSpectrum
from ._theory import bernoulli_spectrum as bernoulli_spectrum
from ._theory import bulk_distribution as bulk_distribution
from ._theory import final_hessian_eigenvalues as final_hessian_eigenvalues
from ._theory import final_rate as final_rate
from ._theory import final_singular_value as final_singular_value
from ._theory import resistance_bound as resistance_bound
from ._theory import small_scale_losses as small_scale_losses
from ._theory import typical_ratio as typical_ratio
from ._train import Run as Run
from ._train import train as train
from ._train import train_batch as train_batch
