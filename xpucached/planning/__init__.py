"""Decide: what should be warmed, what may go, whose entries these are, and how the host stands.  Pure.

Divided by subject: `prewarm`, `manners`, `standing`, `diagnosis`, `baselines`, `replay`, `eviction`, `sifting`,
`budget`, `mending`, `trash`, `attribution`, `witnessing`.  Other rooms use the names below.
"""

from __future__ import annotations

from xpucached.planning.attribution import attribute as attribute
from xpucached.planning.baselines import baselines as baselines
from xpucached.planning.budget import ABSENT as ABSENT
from xpucached.planning.budget import HALF as HALF
from xpucached.planning.budget import RATE as RATE
from xpucached.planning.diagnosis import diagnose as diagnose
from xpucached.planning.diagnosis import mapped as mapped
from xpucached.planning.diagnosis import trusted as trusted
from xpucached.planning.eviction import plan_eviction as plan_eviction
from xpucached.planning.eviction import plan_named as plan_named
from xpucached.planning.manners import effort as effort
from xpucached.planning.manners import is_open as is_open
from xpucached.planning.manners import strained as strained
from xpucached.planning.mending import Tried as Tried
from xpucached.planning.mending import plan_comparing as plan_comparing
from xpucached.planning.mending import plan_mending as plan_mending
from xpucached.planning.prewarm import UNCACHED as UNCACHED
from xpucached.planning.prewarm import applicable as applicable
from xpucached.planning.prewarm import plan_prewarm as plan_prewarm
from xpucached.planning.replay import Pace as Pace
from xpucached.planning.replay import ReplayScope as ReplayScope
from xpucached.planning.replay import Tail as Tail
from xpucached.planning.replay import contradicted as contradicted
from xpucached.planning.replay import plan_replay as plan_replay
from xpucached.planning.replay import replayable as replayable
from xpucached.planning.replay import tail as tail
from xpucached.planning.sifting import sift as sift
from xpucached.planning.standing import AUTOMATIC as AUTOMATIC
from xpucached.planning.standing import names as names
from xpucached.planning.standing import of_drivers as of_drivers
from xpucached.planning.standing import verdict as verdict
from xpucached.planning.standing import warmth as warmth
from xpucached.planning.trash import SCARCE as SCARCE
from xpucached.planning.trash import plan_trash as plan_trash
from xpucached.planning.witnessing import Deeds as Deeds
from xpucached.planning.witnessing import deeds as deeds
from xpucached.planning.witnessing import uses as uses
