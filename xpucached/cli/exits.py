"""Door: what commands end with besides 0 and the statuses of refusals; the manual's table says the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

OF_COMMANDS: Final[Mapping[str, Mapping[int, str]]] = {
    "status": {1: "with `--wait`: the time was up before everything had been looked at"},
    "status --check": {
        1: "a model is not warm yet, or something else is not well",
        2: "a model could not be warmed",
        3: "not known: no device, no daemon, no answer of the driver",
    },
    "driver-changed --wait": {
        1: "not all is warm, or the time is up",
        2: "a model could not be warmed, or a worker fails",
    },
    "prewarm": {1: "a model is not warm, or the time is up"},
    "model add --prewarm": {1: "the model is not warm"},
    "replay": {1: "an entry was not rebuilt"},
    "verify": {1: "damage is left, or not everything could be read"},
    "doctor": {1: "something makes programs hang, slow or fail, or not everything could be read"},
    "trash empty": {1: "you said no"},
    "trash restore": {65: "an entry could not come back to its place"},
    "inspect": {1: "something is unknown, or could not be read"},
    "fleet diff": {1: "the hosts are not equal, or one could not be read"},
    "bundle diff": {1: "the two are not equal"},
    "bundle import": {1: "an entry could not be put in place, or not be compiled"},
    "setup": {1: "a step failed"},
    "run": {126: "the program may not be run", 127: "there is no such program"},
    "trace": {126: "the program may not be run, or nothing more can be started", 127: "there is no such program"},
}
"""A job that somebody cancels ends all of them that wait for it with 1."""
