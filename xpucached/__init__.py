"""xpucached looks after the kernel caches of Intel GPUs.

The map of the house, from the top floor down; imports go down only (``tests/test_house.py`` enforces it)::

    6   daemon · stewardship · ctl · __main__
    5   server
    4   service · steward
    3   watch · dispatch · builder · warden · worker
    2   planning · host · lookout · kinds · probe · assay · catalog · settings · api · render · installing · incidents
    1   errors · quantities · sockets · systemd · logs · patience · processes
    0   domain · messages · printing

Every flow goes *observe → decide → act → record*: ``host``, ``watch`` and ``kinds`` look; ``planning`` decides, and
does nothing; ``dispatch``, ``kinds`` act; ``catalog`` remembers.  ``service`` conducts, one method per verb.
``settings``, ``api``, ``server``, ``render`` and ``ctl`` are the doors, and ``daemon`` is the life of the process.

On a host each user has such a daemon (his *worker*), and the host's own daemon is another one, which works in nobody's
store: ``steward`` starts the workers through systemd, asks and tells them; ``stewardship`` is the life of its process.
"""

from __future__ import annotations

__version__ = "0.1.0"
