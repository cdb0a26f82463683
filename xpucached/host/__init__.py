"""Observe: this machine, its GPUs, its driver and its processes; the home of psutil and the only room that asks them.

Divided by subject: `gpu_devices`, `drivers` and `driver_stamp` (files of the driver), `process_table`, `survey` (all of
it together), `other_driver` and `simulated_gpu` (drivers that are not in use here), `capacity` and `pressure` (what is
left for work of ours), `dependencies` and `proofs` (what a model's program needs, and what of it changed; by
`digests`).  Other rooms use the names below.
"""

from __future__ import annotations

from xpucached.host.capacity import cores as cores
from xpucached.host.capacity import memory_left as memory_left
from xpucached.host.capacity import strained as strained
from xpucached.host.driver_stamp import fingerprint as fingerprint
from xpucached.host.drivers import driver_files as driver_files
from xpucached.host.drivers import mapped_drivers as mapped_drivers
from xpucached.host.drivers import stamp as stamp
from xpucached.host.drivers import watched as watched
from xpucached.host.gpu_devices import architecture as architecture
from xpucached.host.gpu_devices import boot_id as boot_id
from xpucached.host.gpu_devices import gpus as gpus
from xpucached.host.gpu_devices import kernel as kernel
from xpucached.host.other_driver import unpacked as unpacked
from xpucached.host.pressure import PressureMeter as PressureMeter
from xpucached.host.process_table import family as family
from xpucached.host.process_table import held as held
from xpucached.host.process_table import of_units as of_units
from xpucached.host.process_table import processes as processes
from xpucached.host.process_table import program as program
from xpucached.host.process_table import started as started
from xpucached.host.process_table import writer_since as writer_since
from xpucached.host.proofs import DependencyChanges as DependencyChanges
from xpucached.host.proofs import DependencyChecker as DependencyChecker
from xpucached.host.proofs import DependencySnapshot as DependencySnapshot
from xpucached.host.proofs import clock_was_set as clock_was_set
from xpucached.host.proofs import named as named
from xpucached.host.proofs import needed as needed
from xpucached.host.roots import HostRoots as HostRoots
from xpucached.host.simulated_gpu import pretend as pretend
from xpucached.host.survey import survey as survey
from xpucached.processes.driver_probe import ask as ask
from xpucached.processes.driver_probe import ask_runtime as ask_runtime
