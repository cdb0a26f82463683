"""Many hosts: who is put together with whom, and by what name."""

from __future__ import annotations

from msgspec.structs import replace

from tests.support.builders import sycl_target
from xpucached.domain.bundles import CompilerLibrary
from xpucached.domain.fleet import FleetHost, HostFingerprint, HostTarget
from xpucached.planning.fleet import differences, groups

TARGET = HostTarget(sycl_target("Level-Zero", "Intel(R) Arc(TM) B580 Graphics", "20.1.0", "1.6.31"), "bmg-g21")


def told(library: str, *targets: HostTarget) -> HostFingerprint:
    """Return what a host says whose compiler's library has this digest."""
    return HostFingerprint(targets, (CompilerLibrary("libigc", f"sha256:{library}"),))


def test_equal_hosts_stand_together_and_each_has_a_name_of_its_own() -> None:
    hosts = [
        ("odd", told("b", TARGET)),
        ("two", told("a", TARGET)),
        ("one", told("a", TARGET)),
        ("two", told("a", TARGET)),
    ]
    found = groups((FleetHost(name, one), f"{number}.json") for number, (name, one) in enumerate(hosts))

    assert [one.hosts for one in found] == [("one", "two (1.json)", "two (3.json)"), ("odd",)]
    assert found[0].fingerprint == found[0].told.fingerprint
    assert not found[0].differences
    assert found[1].differences


def test_hosts_of_which_something_is_unknown_are_equal_to_none_and_come_last() -> None:
    hosts = [FleetHost("dark", told("a")), FleetHost("blind", told("a")), FleetHost("seeing", told("a", TARGET))]
    found = groups((one, one.name) for one in hosts)

    assert [one.hosts for one in found] == [("seeing",), ("dark",), ("blind",)]
    assert [bool(one.fingerprint) for one in found] == [True, False, False]
    # Of the one that most are like, only what is not known of it is told.
    assert [(one.here, one.most) for one in differences(hosts[0].told, hosts[0].told)] == [("not known", "")]


def test_what_differs_is_told_beside_what_is_not_known() -> None:
    unknown = replace(TARGET, isa="", target=replace(TARGET.target, toolchain="1.6.30"))
    here, most = (
        replace(told(library, one), formats={"sycl": form})
        for library, one, form in (("b", unknown, "dirs-v1"), ("a", TARGET, "dirs-v2"))
    )
    where = "Intel(R) Arc(TM) B580 Graphics, through Level-Zero"

    assert [(one.what, one.here, one.most) for one in differences(here, most)] == [
        ("instructions", "not known", ""),
        (f"sycl: driver of {where}", "1.6.30", "1.6.31"),
        (f"sycl: instructions of {where}", "not known", "bmg-g21"),
        ("libigc", "sha256:b", "sha256:a"),
        ("format of sycl", "dirs-v1", "dirs-v2"),
    ]
