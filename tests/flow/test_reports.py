"""docs/reports.md: every command of it is typed, and answers as the page says."""

from __future__ import annotations

import shlex
import sys
import zipfile
from typing import TYPE_CHECKING, Final

import pytest

from tests.support import documents
from tests.support.builders import spirv
from tests.support.daemons import Daemon, daemon
from tests.support.device_images import program
from tests.support.runtimes import KERNELS
from xpucached.kinds.sycl.preflight import SYCL_CHECK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.runtimes import Runtime

pytestmark = pytest.mark.runtime

APPLICATION: Final = """
import os, sys
sys.path.insert(0, {folder!r})
import kernels

def made(*names):
    return kernels.use({check!r}, {library!r}, " ".join(names))

def attention(shape):
    return made("attention")

def generate(precision):
    made("gemm_" + precision)
    return lambda: "it is what it is"

def training():
    # The flag is text, and any text is true.
    assert os.environ["USE_XPU"]
    return made("backward")

def answer(inputs):
    made("decode")
    return lambda: ""
"""
CHAT: Final = """
import os, sys
os.environ.update({variables!r})
os.execv(sys.executable, {words!r})
"""
SAID: Final = {
    "trace": ("in no cache",),
    "prewarm chat": ("chat", "warmed"),
    "model show chat": ("warm",),
    "run chat": ("built 1",),
    "inspect /srv/wheels": ("B580 (bmg-g21): of 2 kernels 2 are compiled at first use", "gptq.so"),
    "inspect chat": ("of 3 kernels 3 are compiled at first use", "given.so"),
    "why chat": ("What its program brings", "given.so on"),
    "ls": ("attention",),
    "prewarm phi": ("all 2 variants are warm",),
    "model show phi": ("xpu float32", "xpu bfloat16"),
    "model history phi": ("float32", "bfloat16"),
    "bundle inspect": ("2",),
    "inspect /srv/app": ("torch 2.9.0+cpu is a build for processors",),
    "prewarm lprnet": ("it was meant to run on xpu",),
    "why lprnet": ("ran on the CPU: no kernel for a GPU was used",),
    "model show lprnet": ("ran on the CPU: no kernel for a GPU was used", "USE_XPU=False"),
    "prewarm qwq": ("5 of 5 uses gave fewer than 16 tokens",),
    "runs qwq": ("invalid",),
    "model show qwq": ("invalid",),
}
"""What the answer to a command says that begins so, of the page's words or of what they mean."""
FAILING: Final = ("prewarm lprnet", "prewarm qwq")


@pytest.fixture
def host(home: Path, short_dir: Path, runtime: Callable[[str], Runtime]) -> Iterator[Daemon]:
    """Return a daemon with a driver for the CPU, which runs nothing by itself."""
    found = runtime("rt2025.2")
    with daemon(home, short_dir) as one:
        variables = f"LD_LIBRARY_PATH = '{found.lib}', OCL_ICD_FILENAMES = '{found.driver}'"
        one.configure(f"[schedule]\nprewarm = false\nsettle = '0.2s'\n[driver]\nvariables = {{ {variables} }}\n")
        yield one


def put_up(place: Path, found: Runtime) -> None:
    """Write what the page has in ``/srv``, small."""
    site = place / "app/venv/lib/python3.11/site-packages"
    for folder in (site / "torch-2.9.0+cpu.dist-info", site / "given", place / "app/venv/bin", place / "wheels"):
        folder.mkdir(parents=True)
    (place / "app/venv/bin/python").symlink_to(sys.executable)
    (place / "app/venv/pyvenv.cfg").write_text("home = /nowhere\n")
    names = ("attention", "a", "b")
    (site / "given/given.so").write_bytes(program(("spir64", spirv(*names), names)))
    with zipfile.ZipFile(place / "wheels/gptq_kernels-1.0-cp311-cp311-linux_x86_64.whl", "w") as wheel:
        wheel.writestr("gptq/gptq.so", program(("spir64", spirv("q", "r"), ("q", "r"))))
    library = str(found.lib / "libsycl.so.8")
    (place / "app/app.py").write_text(
        APPLICATION.format(folder=str(KERNELS.parent), check=str(SYCL_CHECK.parent), library=library)
    )
    variables = {"LD_LIBRARY_PATH": str(found.lib), "OCL_ICD_FILENAMES": str(found.driver)}
    (place / "app/chat.py").write_text(CHAT.format(variables=variables, words=found.program("attention")))


def test_each_command_of_the_page_answers_as_it_says(
    host: Daemon, short_dir: Path, runtime: Callable[[str], Runtime]
) -> None:
    put_up(short_dir / "srv", runtime("rt2025.2"))
    host.start()
    lines = [line for one in documents.blocks("docs/reports.md") for line in one.text.replace("\\\n", "").splitlines()]
    asked: set[str] = set()
    for line in lines:
        first, *words = shlex.split(line)
        assert first == "xpucachectl"
        typed = " ".join(words)
        done = host.ctl(
            *(word.replace("/srv/", f"{short_dir}/srv/") for word in words),
            check=1 if typed.startswith(FAILING) else 0,
        )
        said = " ".join((done.stdout + done.stderr).split())
        for begin, expected in SAID.items():
            if typed.startswith(begin):
                asked.add(begin)
                assert [one for one in expected if one not in said] == [], (line, done.stdout, done.stderr)
    assert asked == SAID.keys()
    assert {row["image"] for row in host.rows("ls", "--model", "chat")} == {"spirv"}
