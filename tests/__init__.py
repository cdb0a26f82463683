"""The tests.

``unit``     one folder for each room: no process, milliseconds; with `kinds`, what ``make test FAST=1`` runs
``kinds``    what every kind of cache promises, and each one's bytes and damage
``flow``     one thing as it goes through the program: real daemons, children and runtimes
``system``   what needs the machine: systemd, packages, other users, file systems that fail, deaths
``attacks``  one file for each attack, carried out by two real users
``fuzz``     bytes that might break a reader
``support``  what they share
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parent.parent

INSTANCE: Final = f"test-{os.getpid()}"
"""Whose children a test starts: who looks for those of an earlier life ends none of a test in another process."""
