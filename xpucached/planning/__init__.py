"""Decide: what should be warmed, what may go, whose entries these are, and how the host stands.  Pure.

Divided by subject: `prewarm`, `standing`, `eviction`, `budget`, `mending`, `trash`,
`attribution`.  Other rooms use the names below.
"""

from __future__ import annotations

from xpucached.planning.attribution import attribute as attribute
from xpucached.planning.eviction import plan_eviction as plan_eviction
from xpucached.planning.eviction import plan_named as plan_named
from xpucached.planning.mending import plan_mending as plan_mending
from xpucached.planning.prewarm import plan_prewarm as plan_prewarm
from xpucached.planning.replay import plan_replay as plan_replay
from xpucached.planning.replay import tail as tail
from xpucached.planning.standing import verdict as verdict
from xpucached.planning.standing import warmth as warmth
from xpucached.planning.trash import SCARCE as SCARCE
from xpucached.planning.trash import plan_trash as plan_trash
