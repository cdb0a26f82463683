"""Whose keys count for which part of a bundle, and what is said of those that do not."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.support import bundles
from tests.support.api_stub import OPENCL
from xpucached.bundle import members
from xpucached.bundle.trust import keygen
from xpucached.bundling.__main__ import carry_out
from xpucached.bundling.merging import merge
from xpucached.bundling.signing import signed_view
from xpucached.domain.bundles import InspectBundle, InspectReport, MergeBundles

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("cryptography")


def for_a_b580(tmp_path: Path, home: Path) -> tuple[Path, Path]:
    """Make a bundle that a trusted key signed; give it with the folder of keys."""
    keys = home / ".config/xpucached/trust.d"
    keys.mkdir(parents=True)
    keygen(tmp_path / "release")
    shutil.copy(tmp_path / "release.pub", keys)
    path, program, source = bundles.leaf(target=OPENCL)
    content = {f"sycl/{path}/0.bin": program, f"sycl/{path}/0.src": source}
    plain = bundles.tar(content)
    size = sum(map(len, content.values()))
    told = bundles.facts(plain, target=OPENCL, bytes=size)
    unsigned = bundles.forge(tmp_path / "unsigned", bundles.packed(plain), told)
    merge(MergeBundles((unsigned,), tmp_path / "bundle", sign=str(tmp_path / "release.key")), lambda *_: None)
    return tmp_path / "bundle", keys


@pytest.mark.parametrize(
    ("devices", "signer"),
    [('["bmg-g21"]', "release"), ('["arc(tm) b580"]', "release"), ('["dg2-g10"]', ""), ('["BMG-G21", "x"]', "release")],
)
def test_a_key_counts_for_devices_by_their_architecture_or_name(
    tmp_path: Path, home: Path, devices: str, signer: str
) -> None:
    """What a driver calls a device does not hold its architecture."""
    bundle, keys = for_a_b580(tmp_path, home)
    (keys / "release.toml").write_text(f"devices = {devices}\n")
    opened = members.opened(bundle)
    with opened.layout:
        assert signed_view(opened).signer == (signer or None)


def test_who_is_refused_for_a_key_hears_which_file_is_not_used(tmp_path: Path, home: Path) -> None:
    bundle, keys = for_a_b580(tmp_path, home)

    def said() -> str:
        report = carry_out(InspectBundle(bundle), lambda *_: None)
        assert isinstance(report, InspectReport)
        return report.view.unsigned

    file = keys / "release.pub"
    file.chmod(0o664)
    assert said().endswith(f"; not used: {file}: others can write it")
    file.chmod(0o644)
    (keys / "release.toml").write_text('not-after = "2027-01-01"\n')
    assert said().endswith(f"; not used: {file}: its .toml is no list of devices and no date")
    (keys / "release.toml").unlink()
    file.write_text("ssh-ed25519 AAAA\n")
    (keys / "z.pub").write_text("")
    assert said().endswith(f"; not used (and 1 more): {file}: it holds no public key in PEM")
