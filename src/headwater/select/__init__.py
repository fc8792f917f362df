"""Which samples an epoch visits, and how much each counts: pure numpy, no clock, no files, no torch.

A selector is a file; `selecting` has them all by name, and the one way from a selector to a `Selection`.
Objectives and the ways to maximise them are families of their own.
"""

from headwater.select.active_bias import ActiveBias
from headwater.select.always import Always
from headwater.select.biggest_losers import BiggestLosers
from headwater.select.buckets import Buckets
from headwater.select.craig import Craig
from headwater.select.fresh import Fresh
from headwater.select.infobatch import InfoBatch
from headwater.select.k_center import FarthestFirst
from headwater.select.loss_rank import LossRank
from headwater.select.medoids import Medoids
from headwater.select.proxy import Proxy
from headwater.select.samples import Samples
from headwater.select.selection import Choice, Selection
from headwater.select.uniform import Uniform

__all__ = [
    "ActiveBias",
    "Always",
    "BiggestLosers",
    "Buckets",
    "Choice",
    "Craig",
    "FarthestFirst",
    "Fresh",
    "InfoBatch",
    "LossRank",
    "Medoids",
    "Proxy",
    "Samples",
    "Selection",
    "Uniform",
]
