"""Observe: this machine, its GPUs, its driver and its processes; the home of psutil and the only room that asks them.

Divided by subject: `sysfs` (GPUs), `drivers` (files of the driver), `asking` (the probe's children), `living`
(processes), `runtimes` (SYCL runtimes, and what is safe with them), `machine` (all of it together).  Other rooms use
the names below.
"""

from __future__ import annotations

from xpucached.host.asking import ask as ask
from xpucached.host.drivers import driver_files as driver_files
from xpucached.host.drivers import stamp as stamp
from xpucached.host.drivers import watched as watched
from xpucached.host.living import family as family
from xpucached.host.living import of_units as of_units
from xpucached.host.living import processes as processes
from xpucached.host.living import writer_since as writer_since
from xpucached.host.machine import survey as survey
from xpucached.host.places import Places as Places
from xpucached.host.runtimes import assay as assay
from xpucached.host.runtimes import runtimes as runtimes
from xpucached.host.strain import Meter as Meter
from xpucached.host.sysfs import architecture as architecture
from xpucached.host.sysfs import boot_id as boot_id
from xpucached.host.sysfs import gpus as gpus
from xpucached.host.sysfs import kernel as kernel
