"""The builders write what a real runtime writes; otherwise every test that uses them proves nothing."""

from __future__ import annotations

import random
import struct
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.support.builders import SyclStore, string_hash
from xpucached.kinds.sycl import entry_format

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tests.support.runtimes import Runtime


def test_the_hash_of_nothing_is_the_one_that_real_stores_show() -> None:
    assert string_hash(b"") == 6142509188972423790


def test_both_hashes_agree() -> None:
    for length in range(40):
        data = random.Random(length).randbytes(length)  # noqa: S311 - any bytes will do
        assert string_hash(data) == entry_format.string_hash(data) == entry_format.portable_hash(data)


@pytest.mark.runtime
@pytest.mark.parametrize("name", ["rt2024.2", "rt2025.2"])
def test_a_real_store_can_be_rebuilt(
    name: str, runtime: Callable[[str], Runtime], workload: Path, tmp_path: Path
) -> None:
    real = runtime(name)
    environment = real.environment(tmp_path / "real")
    subprocess.run([real.python, workload, "small"], env=environment, check=True, capture_output=True, timeout=55)

    built = SyclStore(tmp_path / "built")
    sources = sorted((tmp_path / "real").rglob("*.src"))
    for source in sources:
        identity, options, constants, image = fields(source.read_bytes())
        platform, device, version, driver = identity.decode().split("/")
        stamp = source.parent / "0_access_time.txt"
        slot = built.add(
            platform=platform,
            device=device,
            version=version,
            driver=driver,
            options=options.decode(),
            constants=constants,
            image=image,
            binary=source.with_suffix(".bin").read_bytes()[16:],
            access_time=stamp.exists(),
        )
        if stamp.exists():
            slot.access_time.write_bytes(stamp.read_bytes())

    assert len(sources) > 5
    assert contents(tmp_path / "built") == contents(tmp_path / "real")


def fields(data: bytes) -> list[bytes]:
    """Take the fields of a source file apart."""
    found = []
    while data:
        (length,) = struct.unpack_from("<Q", data)
        found.append(data[8 : 8 + length])
        data = data[8 + length :]
    return found


def contents(root: Path) -> Mapping[str, bytes]:
    """Return every file below a directory."""
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
