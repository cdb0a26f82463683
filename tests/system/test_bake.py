"""A warm store in an image: the Dockerfile of the examples is built, and an extension of the host is merged."""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Final

import pytest

from tests import REPOSITORY
from tests.flow.test_bundles import CTL, KERNELS, compiled, content, done
from xpucached.bundle import members
from xpucached.domain.bundles import ExportBundle

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.runtimes import Runtime

EXAMPLES: Final = REPOSITORY / "examples"
MERGED: Final = """
set -e
mount -t tmpfs tmpfs /run
mount --make-rshared /
systemd-sysext --root="$TREE" merge >&2
mount -t overlay overlay -o "$OPTIONS" "$BOTH"
"$@"
exec $LOOK
"""


def needs_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root builds images and mounts extensions here")


@pytest.mark.runtime
def test_the_dockerfile_gives_an_image_whose_programs_compile_nothing(
    runtime: Callable[[str], Runtime], tmp_path: Path
) -> None:
    needs_root()
    buildah = shutil.which("buildah")
    if buildah is None:
        pytest.skip("there is no buildah here")
    real = runtime("rt2025.2")
    assert compiled(real, tmp_path / "store", *KERNELS) == (0, len(KERNELS))
    place = tmp_path / "context"
    place.mkdir()
    done(ExportBundle(place / "app.bundle", tmp_path / "store", recipes_only=True))

    def built(*words: object) -> str:
        where = ("--root", tmp_path / "images", "--runroot", tmp_path / "run", "--storage-driver", "vfs")
        # No network, as in builds that may have none.
        command = ["/usr/bin/unshare", "-n", buildah, *map(str, (*where, *words))]
        environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "BUILDAH_ISOLATION": "chroot"}
        told = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
        assert told.returncode == 0, told.stdout + told.stderr
        return told.stdout.strip()

    # An image with nothing in it; what it starts with is what runs this test, bound into its place.
    base = tmp_path / "base"
    for name in ("usr", "etc", "proc", "sys", "dev", "tmp"):
        (base / name).mkdir(parents=True)
    for name in ("bin", "lib", "lib64"):
        (base / name).symlink_to(f"usr/{name}")
    image = built("from", "scratch")
    built("copy", image, base, "/")
    built("commit", image, "registry.example/app:1")
    built("config", "--env", f"PATH={os.path.dirname(sys.executable)}:/usr/bin:/bin", image)  # noqa: PTH120 - as it is called
    built("commit", image, "registry.example/xpucached:1")
    seen = {"/usr", str(REPOSITORY), sys.prefix, sys.base_prefix}
    volumes = [f"--volume={one}:{one}:ro" for one in sorted(seen) if one == "/usr" or not one.startswith("/usr/")]
    context = ("--build-context", f"driver={real.root}", "--pull-never", "--tag", "warm")
    built("bud", *volumes, *context, "--file", EXAMPLES / "image/Dockerfile", place)

    root = tmp_path / "images"
    assert built("inspect", "--format", "{{.OCIv1.Config.Env}}", "warm").endswith(
        "SYCL_CACHE_PERSISTENT=1 SYCL_CACHE_DIR=/usr/share/app/sycl]"
    )
    store = next(root.glob("vfs/dir/*/usr/share/app/sycl"))
    assert content(store) == content(tmp_path / "store")
    # The layers of an image that runs cannot be written.
    inside = ["/usr/bin/unshare", "-m", "/bin/sh", "-c", f'mount --bind -o ro {store} {store} && exec "$@"', "sh"]
    told = subprocess.run(
        [*inside, *real.program(*KERNELS)],
        env=real.environment(store, trace=True),
        capture_output=True,
        text=True,
        check=True,
    )
    said = told.stdout + told.stderr
    assert (said.count("using cached device binary"), said.count("has been cached")) == (len(KERNELS), 0)


@pytest.mark.runtime
def test_programs_find_what_an_extension_has_and_write_above_it(
    runtime: Callable[[str], Runtime], tmp_path: Path
) -> None:
    needs_root()
    if shutil.which("systemd-sysext") is None:
        pytest.skip("there is no systemd-sysext here")
    real = runtime("rt2025.2")
    warm = tmp_path / "tree/var/lib/extensions/app-warm/usr"
    store = warm / "share/app/sycl"
    store.parent.mkdir(parents=True)
    assert compiled(real, store, *KERNELS) == (0, len(KERNELS))
    before = content(store)
    for path, text in (
        (warm / "lib/extension-release.d/extension-release.app-warm", "ID=_any\n"),
        (tmp_path / "tree/usr/lib/os-release", "ID=debian\nVERSION_ID=12\n"),
    ):
        path.parent.mkdir(parents=True)
        path.write_text(text)
    (tmp_path / "tree/etc").mkdir()
    (tmp_path / "tree/etc/os-release").symlink_to("../usr/lib/os-release")

    # As the unit of the examples mounts it, all of it below another root.
    unit = EXAMPLES / "sysext/var-cache-app-sycl.mount"
    told = subprocess.run(["/usr/bin/systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert (told.returncode, told.stderr) == (0, "")
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(unit)
    options = parser["Mount"]["Options"].replace("=/", f"={tmp_path}/tree/")
    both = tmp_path / f"tree{parser['Mount']['Where']}"
    for name in ("sycl", "up", "work"):
        (both.parent / name).mkdir(parents=True)
    variables = real.environment(both, trace=True)
    where = {"TREE": str(tmp_path / "tree"), "OPTIONS": options, "BOTH": str(both)}
    # All that is looked at as a daemon looks at a store.
    where["LOOK"] = f"{' '.join(CTL)} bundle export {tmp_path}/seen --store {both} --recipes-only --quiet"
    inside = ["/usr/bin/unshare", "-m", "/bin/sh", "-c", MERGED, "sh", *real.program(*KERNELS, "above")]
    ran = subprocess.run(inside, env={**variables, **where}, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    said = ran.stdout + ran.stderr
    assert "Merged extensions" in said
    assert (said.count("using cached device binary"), said.count("has been cached")) == (len(KERNELS), 1)
    assert content(store) == before
    assert members.opened(tmp_path / "seen").members[0].facts.entries == len(KERNELS) + 1
    assert len(list((both.parent / "up").glob("*/*/*/*/0.bin"))) == 1
