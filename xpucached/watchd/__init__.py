"""The watcher: tells daemons what happens in their stores, from the kernel's fanotify.  A process of its own."""

from __future__ import annotations
