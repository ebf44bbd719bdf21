"""The engine where nothing is shared: latencies by a recurrence over requests, for all runs at once.

    B_j = max(a worker is free, B_{j-1}, G of the request that took token j - K)     E_j = B_j + T_off,j
    R_i = i-th smallest E        S_i = max(A_i, a slot is free)       G_i = max(S_i, R_i)       C_i = G_i + T_on,i

Every event happens with the last of its causes (a max-plus recurrence: F. Baccelli et al., "Synchronization and
Linearity", 1992), so each request is a handful of numpy calls on vectors over the runs (`walks`), or over the pieces of
long ones (`pieces`). Three facts keep it exact: a refill that is not yet begun when request i goes begins after that,
so R_i is known; of r workers the next is free at the r-th largest of the ends so far; and with tokens and slots given
in order of arrival, S and G ascend.

It does not know of shared cores and links (`events` does), priorities, or places that are freed out of order.
"""

from __future__ import annotations

import numpy as np

from hummingbird.capacity import pieces
from hummingbird.capacity.replay import BatchReplay, Singles
from hummingbird.capacity.system import Draws, Load, LoadOutcome, System
from hummingbird.errors import ConfigError, InputError


def simulate(system: System, load: Load, seconds: Draws) -> LoadOutcome:
    """Follow every request of `load` through `system`; `seconds`: of each phase, with sizes already counted in.

    10^6 requests take about 0.5 s of one core, as one run or as many; half a minute as a run whose queue never empties,
    of users, or where requests are turned away or join the shortest of several queues.
    Raises ConfigError for rules that this recurrence does not follow exactly, and for a store too small for a request.
    """
    need = system.per_request * load.sizes()
    system.check_tokens(need)
    _check(system, load, seconds)
    if system.batch > 1:
        return BatchReplay(system, load, seconds, need).run()
    found = pieces.simulate(system, load, seconds, need) if pieces.of_each(system, load) > 1 else None
    return Singles(system, load, seconds, need).run() if found is None else found


def _check(system: System, load: Load, seconds: Draws) -> None:
    if system.tokens is not None and seconds.refill is None:
        raise InputError("tokens, and no seconds of a refill", where="refill")
    varied = bool(np.ptp(seconds.request)) or seconds.session is not None or system.batch > 1
    if system.kept and system.slots > 1 and varied:
        hint = "use the event engine, one slot, or a constant online phase"
        raise ConfigError("tokens kept until requests end, which end out of order", where="kept", hint=hint)
    system.check_batches(load, seconds)
