"""Early tickets: channels that training shows to be idle are removed while it goes on.

`plan.prune` decides when and which; here are the parts that touch a torch model: reading its channel
scales, the penalty on them, the surgery, the optimiser's state, the statistics of batch norms, and the file
of a slim model.
"""

from headwater.train.tickets.bird import EarlyBird
from headwater.train.tickets.ticket import Ticket, load_ticket

__all__ = ["EarlyBird", "Ticket", "load_ticket"]
