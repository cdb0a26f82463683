"""Hints: each command in what is printed works as it stands, for the person who reads it."""

from __future__ import annotations

import argparse
from argparse import Namespace
from pathlib import Path
from typing import Final

import pytest

from xpucached.cli import arguments, hints
from xpucached.printing import quoted

NOBODY: Final[dict[str, str]] = {}
BY_SUDO: Final = {"SUDO_UID": "1000"}


def given(**words: object) -> str:
    """Return the flags of a command line."""
    return hints.flags(Namespace(**{"socket": None, "of": "", "scope": None, **words}))


def test_what_led_to_the_daemon_leads_there_again() -> None:
    assert given() == ""
    assert given(of="alice") == "--of alice "
    assert given(scope="user") == "--user "
    assert given(scope="system", of="a b") == "--of 'a b' "
    assert given(socket=Path("/run/x y")) == "--socket '/run/x y' "


@pytest.mark.parametrize(
    ("text", "aimed"),
    [
        ("run: xpucachectl prewarm --stale", "run: xpucachectl --of alice prewarm --stale"),
        ("xpucachectl ls; xpucachectl model list", "xpucachectl --of alice ls; xpucachectl --of alice model list"),
        # Who has flags already means another daemon, and what asks none needs none.
        ("xpucachectl --of bob jobs", "xpucachectl --of bob jobs"),
        ("xpucachectl setup --user; xpucachectl version", "xpucachectl setup --user; xpucachectl version"),
        ("xpucachectl and xpucached may differ", "xpucachectl and xpucached may differ"),
        ("ask for your own: xpucachectl status", "ask for your own: xpucachectl status"),
    ],
)
def test_commands_have_the_flags_with_which_one_asked(text: str, aimed: str) -> None:
    assert hints.aimed(text, "--of alice ", NOBODY) == aimed
    assert hints.aimed(text, "", NOBODY) == text


def test_who_came_by_sudo_is_told_to_come_by_sudo() -> None:
    text = "xpucachectl model list; systemctl start xpucached; systemctl --user stop x; sudo systemctl start y"
    assert hints.aimed(text, "--of alice ", BY_SUDO) == (
        "sudo xpucachectl --of alice model list; sudo systemctl start xpucached; systemctl --user stop x;"
        " sudo systemctl start y"
    )
    as_another = "sudo -u '#1003' xpucachectl --user status"
    assert hints.aimed(as_another, "--of alice ", BY_SUDO) == as_another
    assert hints.aimed("see: xpucachectl --of USER jobs", "", BY_SUDO) == "see: sudo xpucachectl --of USER jobs"


@pytest.mark.parametrize("job", ["1; touch x", "1001.$(touch x)", "1001.prewarm-3", "--all", "a\nb"])
def test_what_a_worker_calls_its_job_is_one_word_of_a_command(job: str) -> None:
    """Root may type what is printed, and a job's name is its user's word: no other user's job is meant."""
    assert hints.to_see_a_job(job, "--of alice ") == f"xpucachectl --of alice jobs {quoted(job)}"
    assert hints.to_end_a_job(job, "--of alice ", root=True) == f"xpucachectl --of alice jobs --cancel {quoted(job)}"


def test_a_job_is_found_and_ended_by_what_is_printed() -> None:
    assert hints.to_see_a_job("prewarm-3", "--of alice ") == "xpucachectl --of alice jobs prewarm-3"
    assert hints.to_end_a_job("prewarm-3", "", root=False) == "xpucachectl jobs --cancel prewarm-3"
    # One that the host's daemon began.
    assert hints.to_see_a_job("1000.prewarm-3", "") == "xpucachectl --of 1000 jobs prewarm-3"
    assert hints.to_end_a_job("1000.prewarm-3", "", root=True) == "xpucachectl --of 1000 jobs --cancel prewarm-3"
    assert hints.to_end_a_job("1000.prewarm-3", "", root=False).startswith("sudo xpucachectl --of 1000 ")
    assert hints.as_root(["--of", "a b", "ls"]) == "as root: sudo xpucachectl --of 'a b' ls"


def test_all_commands_that_ask_a_daemon_are_known() -> None:
    parser = arguments._parser()
    choices = next(one.choices for one in parser._actions if isinstance(one, argparse._SubParsersAction))
    assert {*choices} - {"bundle", "fingerprint", "fleet", "inspect", "setup", "version", "completion"} == {
        *hints.VERBS
    }
