"""Decide: what should be warmed, what may go, whose entries these are, and how the host stands.  Pure.

Divided by subject: `prewarm`, `throttling`, `verdict`, `diagnosis`, `baselines`, `replay`, `eviction`, `preselect`,
`ranking`, `repair`, `trash`, `attribution`, `activity`, `usage`.
"""

from __future__ import annotations
