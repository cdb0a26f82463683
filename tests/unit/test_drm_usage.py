"""What the kernel says of open graphics devices: texts as its drivers and its documentation give them."""

from __future__ import annotations

import pytest

from xpucached.libexec.drm_usage import DrmClient, GraphicsCounters, read

# As Documentation/gpu/drm-usage-stats.rst has it for i915 …
I915 = """\
pos:    0
flags:  0100002
mnt_id: 26
drm-driver: i915
drm-pdev:   0000:00:02.0
drm-client-id:      7
drm-engine-render:  9288864723 ns
drm-engine-copy:    2035071108 ns
drm-engine-video:   0 ns
drm-engine-capacity-video:   2
drm-total-system0:  4096 KiB
drm-shared-system0: 0
drm-resident-system0: 1024 KiB
drm-total-local0:   3 MiB
drm-resident-local0: 2 MiB
drm-purgeable-local0: 0
"""
# … and Documentation/gpu/xe for xe.
XE = """\
drm-driver:	xe
drm-client-id:	{client}
drm-pdev:	0000:03:00.0
drm-total-gtt:	192 KiB
drm-resident-gtt:	192 KiB
drm-total-vram0:	23992 KiB
drm-resident-vram0:	{resident} KiB
drm-cycles-rcs:	{rcs}
drm-total-cycles-rcs:	{total}
drm-cycles-ccs:	0
drm-total-cycles-ccs:	{total}
drm-engine-capacity-ccs:	4
"""


def xe(client: int = 9, rcs: int = 0, total: int = 7655183225, resident: int = 23992) -> DrmClient:
    """Return a client of xe."""
    found = read(XE.format(client=client, rcs=rcs, total=total, resident=resident))
    assert found is not None
    return found


def test_what_i915_says_is_read() -> None:
    assert read(I915) == DrmClient(
        "0000:00:02.0", "7", "i915", {"render": 9288864723, "copy": 2035071108, "video": 0}, {}, 2 << 20
    )


def test_what_xe_says_is_read() -> None:
    one = xe(rcs=28257900)
    assert one.cycles == {"rcs": (28257900, 7655183225), "ccs": (0, 7655183225)}
    assert (one.engines, one.memory) == ({}, 23992 << 10)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "pos:\t0\nflags:\t02\n",
        "drm-driver: i915\n",
        "drm-driver: i915\ndrm-client-id: seven\n",
        "drm-client-id: 7\n",
        "\n" * 600 + I915,
    ],
)
def test_what_is_no_client_counts_for_nothing(text: str) -> None:
    assert read(text) is None


def test_absurd_numbers_are_bounded() -> None:
    found = read("drm-driver: i915\ndrm-client-id: 7\ndrm-engine-a: " + "9" * 5000 + " ns\ndrm-total-x: -1 MiB\n")
    assert found is not None
    assert (found.engines, found.memory, found.device) == ({"a": 0}, 0, "?")
    huge = read("drm-driver: i915\ndrm-client-id: 7\ndrm-resident-a: 9000000000000000000 MiB\n")
    assert huge is not None
    assert huge.memory == 1 << 62


def test_a_client_counts_once_however_many_descriptors_it_has() -> None:
    use = GraphicsCounters(10)
    one = read(I915)
    assert one is not None
    use.look([one, one], 0.0)
    use.look([one, one, one], 0.5)
    assert use.worked == {("0000:00:02.0", "7"): 9288864723 + 2035071108}
    assert use.report() == [["0000:00:02.0", "i915", pytest.approx(11.323935831), 2 << 20]]


def test_of_cycles_the_share_between_two_looks_is_time() -> None:
    use = GraphicsCounters(10)
    use.look([xe(1, 0, 1000, 10), xe(2, 0, 1000, 20)], 10.0)
    use.look([xe(1, 500, 2000, 30), xe(2, 0, 2000, 10)], 12.0)
    # Half of two seconds; the clock of the engines set back, or a forged count, is no time.
    use.look([xe(1, 9_000_000, 2001, 5)], 12.5)
    use.look([xe(1, 1, 1, 5)], 13.0)
    assert use.report() == [["0000:03:00.0", "xe", pytest.approx(1.5), 40 << 10]]


def test_more_clients_than_are_counted_change_nothing() -> None:
    use = GraphicsCounters(2)
    use.look([xe(number) for number in range(50)], 0.0)
    use.look([xe(number, 10, 7655183226) for number in range(50)], 1.0)
    assert len(use.worked) == 2
