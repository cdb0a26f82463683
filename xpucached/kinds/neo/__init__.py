"""The GPU driver's own compiler cache (``neo_compiler_cache``) of Intel's compute-runtime, "NEO".

Read from its sources (22.43 to 26.31) and tried on the drivers 22.43 and 26.27 with simulated devices; formats and
faults are in ``docs/kinds.md``.
"""
