"""xpucached looks after the kernel caches of Intel GPUs.

The map of the house, from the top floor down; imports go down only (``tests/test_architecture.py`` enforces it)::

    6   daemon · cli · libexec · __main__
    5   server
    4   service · hostd · bundling · tracing
    3   watch · kinds · inspection · answers
    2   planning · host · watchd · catalog · settings · api · render · incidents · bundle · registry
    1   binaries · codec · options · quantities · guarded · sockets · systemd · logs · streams · deadlines · threads
    1   processes
    0   domain · errors · messages · mounts · printing · reading · shortage · sparing · state_files

Every flow goes *observe → decide → act → record*: ``host``, ``watch`` and ``kinds`` look; ``planning`` decides, and
does nothing; ``processes``, ``kinds`` act; ``catalog`` remembers.  ``service`` conducts, one module for each flow.
``settings``, ``api``, ``server``, ``render`` and ``cli`` are the doors, and ``daemon`` is the life of the
processes.  ``libexec`` holds programs that run in processes of their own; nothing imports them.

On a host each user has such a daemon (his *worker*), and the host's own daemon is another one, which works in nobody's
store: ``hostd`` starts the workers through systemd, asks and tells them.
"""

from __future__ import annotations

__version__ = "0.1.0"
