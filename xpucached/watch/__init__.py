"""Observe: "look again"; touches directories only to listen at them.

A ladder.  The best is fanotify (`fanotify`): one mark for a whole file system shows every file and who closed it, but
it needs rights, ours or those of the host's watcher.  Below it is inotify, shallow on purpose: a watch per cached
program would end at the kernel's limit, without a word, and lose events long before.  The root of a store and its
device directories show every new program, for each makes a new directory there.  What is not shown (another slot in a
leaf that is known) waits for the periodic look, as does everything else when the kernel gives us no watches.
"""

from __future__ import annotations
