"""Observe: this machine, its GPUs, its driver and its processes; the home of psutil and the only room that asks them.

Divided by subject: `sysfs` (GPUs), `drivers` and `firmware` (files of the driver), `asking` (the probe's children),
`living` (processes), `runtimes` (SYCL runtimes, and what is safe with them), `folders` (where runtimes lie), `machine`
(all of it together), `unpacked` and `simulated` (drivers that are not in use here), `capacity` (what is left for work
of ours), `needs` and `proofs` (what a model's program needs, and what of it changed; by `digests`).
Other rooms use the names below.
"""

from __future__ import annotations

from xpucached.host.asking import ask as ask
from xpucached.host.asking import ask_runtime as ask_runtime
from xpucached.host.capacity import cores as cores
from xpucached.host.capacity import memory_left as memory_left
from xpucached.host.capacity import strained as strained
from xpucached.host.drivers import driver_files as driver_files
from xpucached.host.drivers import stamp as stamp
from xpucached.host.drivers import watched as watched
from xpucached.host.firmware import fingerprint as fingerprint
from xpucached.host.folders import build_tiny_program as build_tiny_program
from xpucached.host.folders import runtime_folders as runtime_folders
from xpucached.host.living import family as family
from xpucached.host.living import held as held
from xpucached.host.living import of_units as of_units
from xpucached.host.living import processes as processes
from xpucached.host.living import program as program
from xpucached.host.living import started as started
from xpucached.host.living import writer_since as writer_since
from xpucached.host.machine import survey as survey
from xpucached.host.places import Places as Places
from xpucached.host.proofs import Before as Before
from xpucached.host.proofs import Comparing as Comparing
from xpucached.host.proofs import Comparison as Comparison
from xpucached.host.proofs import clock_was_set as clock_was_set
from xpucached.host.proofs import named as named
from xpucached.host.proofs import needed as needed
from xpucached.host.runtimes import assay as assay
from xpucached.host.runtimes import generation as generation
from xpucached.host.runtimes import mapped as mapped
from xpucached.host.runtimes import runtimes as runtimes
from xpucached.host.simulated import pretend as pretend
from xpucached.host.strain import Meter as Meter
from xpucached.host.sysfs import architecture as architecture
from xpucached.host.sysfs import boot_id as boot_id
from xpucached.host.sysfs import gpus as gpus
from xpucached.host.sysfs import kernel as kernel
from xpucached.host.unpacked import unpacked as unpacked
