"""Decide: what should be warmed, what may go, whose entries these are, and how the host stands.  Pure.

Divided by subject: `prewarm`, `throttling`, `verdict`, `diagnosis`, `baselines`, `replay`, `eviction`, `preselect`,
`ranking`, `repair`, `trash`, `attribution`, `activity`.  Other rooms use the names below.
"""

from __future__ import annotations

from xpucached.planning.activity import Activity as Activity
from xpucached.planning.activity import uses as uses
from xpucached.planning.attribution import attribute as attribute
from xpucached.planning.baselines import baselines as baselines
from xpucached.planning.diagnosis import diagnose as diagnose
from xpucached.planning.diagnosis import mapped as mapped
from xpucached.planning.diagnosis import trusted as trusted
from xpucached.planning.eviction import plan_eviction as plan_eviction
from xpucached.planning.eviction import plan_named as plan_named
from xpucached.planning.preselect import sift as sift
from xpucached.planning.prewarm import UNCACHED as UNCACHED
from xpucached.planning.prewarm import applicable as applicable
from xpucached.planning.prewarm import plan_prewarm as plan_prewarm
from xpucached.planning.ranking import ABSENT as ABSENT
from xpucached.planning.ranking import HALF as HALF
from xpucached.planning.ranking import RATE as RATE
from xpucached.planning.repair import Tried as Tried
from xpucached.planning.repair import plan_comparing as plan_comparing
from xpucached.planning.repair import plan_mending as plan_mending
from xpucached.planning.replay import Pace as Pace
from xpucached.planning.replay import ReplayScope as ReplayScope
from xpucached.planning.replay import Tail as Tail
from xpucached.planning.replay import contradicted as contradicted
from xpucached.planning.replay import plan_replay as plan_replay
from xpucached.planning.replay import replayable as replayable
from xpucached.planning.throttling import is_open as is_open
from xpucached.planning.throttling import run_priority as run_priority
from xpucached.planning.throttling import strained as strained
from xpucached.planning.trash import SCARCE as SCARCE
from xpucached.planning.trash import plan_trash as plan_trash
from xpucached.planning.verdict import AUTOMATIC as AUTOMATIC
from xpucached.planning.verdict import names as names
from xpucached.planning.verdict import of_drivers as of_drivers
from xpucached.planning.verdict import verdict as verdict
from xpucached.planning.verdict import warmth as warmth
