"""Observe: this machine, its GPUs, its driver and its processes; the home of psutil and the only room that asks them.

Divided by subject: `gpu_devices`, `drivers` and `driver_stamp` (files of the driver), `process_table`, `survey` (all of
it together), `other_driver` and `simulated_gpu` (drivers that are not in use here), `capacity` and `pressure` (what is
left for work of ours), `core_slots` (how many compilers of all users work together), `dependencies` and `proofs` (what
a model's program needs, and what of it changed; by `digests`), `tools` (what the system's own programs say).
"""
