"""Somebody puts a link that cannot be read where a store would lie: that store is unreadable, all else goes on."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tests.support import users
from tests.support.builders import SyclStore
from tests.support.daemons import daemon

if TYPE_CHECKING:
    from pathlib import Path


def test_a_link_that_cannot_be_read_stops_nothing_but_its_own_store(home: Path, short_dir: Path) -> None:
    closed = users.unreadable_link()
    place, good = short_dir / "public", SyclStore(short_dir / "good")
    good.add("_ZTS1a")
    place.mkdir()
    place.chmod(0o1777)
    for name in ("configured", "model"):
        (place / name).symlink_to(closed)
        if os.geteuid() == 0:
            os.lchown(place / name, users.NOBODY, users.NOBODY)
    with daemon(home, short_dir) as one:
        one.configure(f"[stores]\npaths = ['{place}/configured', '{good.root}']\n[schedule]\nsettle = '0.1s'\n")
        models = one.config.parent / "models.d"
        models.mkdir(parents=True)
        models.joinpath("led.toml").write_text(f"command = ['true']\nstore = '{place}/model'\ndevice = 'cpu'\n")
        models.joinpath("other.toml").write_text("command = ['true']\ndevice = 'cpu'\n")
        one.start()
        one.until(lambda: len(one.rows("model", "list")) == 2)
        one.ctl("scan")
        assert {row["store"]: row["state"] for row in one.rows("stores")}.items() >= {
            (closed, "unreadable"),
            (str(good.root), "ok"),
        }
        assert len(one.rows("ls")) == 1
        assert "1 store could not be looked at" in one.ctl("verify", check=1).stdout
        assert "1 store could not be looked at" in one.ctl("verify", f"{place}/configured", check=1).stdout
        one.ctl("prewarm", "other")
        assert "its cache cannot be read" in one.ctl("prewarm", "led", check=1).stdout
        assert {row["name"]: row["warmth"] for row in one.rows("model", "list")}["led"] == "cold"
        for words in (["env", "led"], ["why", "led"], ["run", "led", "--", "true"], ["evict", "--dry-run"]):
            one.ctl(*words)
        one.ctl("model", "add", "third", "--store", f"{place}/model/below", "--", "true")
        one.until(one.idle)
        assert one.failed() == []
        assert "Traceback" not in one.log.read_text()
