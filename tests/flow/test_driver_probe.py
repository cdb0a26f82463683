"""The probe: against real drivers where there are some, and against small pretend ones that misbehave."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import struct
import subprocess
import sys
from pathlib import Path
from threading import Event

import pytest

from tests import INSTANCE, REPOSITORY
from xpucached.domain.host import DriverAnswer, ProbeReport
from xpucached.domain.names import EntryKey
from xpucached.domain.plans import CompilerSpec, Recipe
from xpucached.domain.stores import EntryId, Store
from xpucached.kinds import sycl
from xpucached.kinds.sycl.targets import identity, target_of
from xpucached.libexec import driver_probe
from xpucached.libexec.level_zero import ip_text, version_text
from xpucached.processes.compiler import CompilerProcess, NoCompiler
from xpucached.processes.driver_probe import ask, ask_runtime

PROBE = Path(driver_probe.__file__)
COMPILER = shutil.which("cc") or shutil.which("gcc")

# A Level Zero loader with one driver, one GPU and one NPU; FAKE tells how it misbehaves.
LEVEL_ZERO = r"""
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
struct device { uint32_t stype; void *next; uint32_t type, vendor, device, flags, sub, clock; uint64_t alloc;
  uint32_t contexts, priority, threads, simd, units, subslices, slices; uint64_t resolution; uint32_t stamp, kstamp;
  uint8_t uuid[16]; char name[256]; };
struct ip { uint32_t stype; const void *next; uint32_t version; };
struct driver { uint32_t stype; void *next; uint8_t uuid[16]; uint32_t version; };
static int is(const char *what) { const char *fake = getenv("FAKE"); return fake && !strcmp(fake, what); }
int zeInit(uint32_t flags) {
  printf("{\"environments\": [], \"problems\": []}\n"); fflush(stdout); fprintf(stderr, "driver 1.2 says hello\n");
  if (is("crash")) *(volatile int *)0 = 1;
  if (is("hang")) for (;;) pause();
  if (is("absent")) return 0x78000001;
  return is("lost") ? 0x70000001 : 0;
}
int zeDriverGet(uint32_t *count, void **drivers) {
  if (is("empty")) { *count = 0; return 0; }
  if (is("wild") && !drivers) { *count = 4000000000u; return 0; }
  *count = 1; if (drivers) drivers[0] = (void *)16; return 0;
}
int zeDeviceGet(void *driver, uint32_t *count, void **devices) {
  *count = 2; if (devices) { devices[0] = (void *)32; devices[1] = (void *)48; } return 0;
}
int zeDeviceGetProperties(void *handle, struct device *device) {
  if (is("halfway")) return 0x70000001;
  if (device->stype != 3 || ((struct ip *)device->next)->stype != 0x1000f) return 0x78000004;
  device->type = handle == (void *)32 ? 1 : 5; device->vendor = 0x8086;
  strcpy(device->name, handle == (void *)32 ? "Intel(R) Arc(TM) B580 Graphics" : "Intel(R) AI Boost");
  ((struct ip *)device->next)->version = 0x05004001; return 0;
}
int zeDriverGetProperties(void *handle, struct driver *driver) {
  if (driver->stype != 1) return 0x78000004;
  driver->version = 0x01067a75; return 0;
}
static int text(void *driver, char *into, size_t *size) {
  if (driver != (void *)17) return 0x78000004;
  const char *version = "1.6.31349+8"; if (into) memcpy(into, version, *size); else *size = strlen(version); return 0;
}
int zelLoaderTranslateHandle(int type, void *handle, void **out) { *out = (void *)((char *)handle + 1); return 0; }
int zeDriverGetExtensionFunctionAddress(void *driver, const char *name, void **address) {
  if (is("old") || strcmp(name, "zeIntelGetDriverVersionString")) return 0x78000003;
  *address = (void *)text; return 0;
}
"""
V1 = "Intel(R) oneAPI Unified Runtime over Level-Zero"
V2 = "Intel(R) oneAPI Unified Runtime over Level-Zero V2"
ARC = "Intel(R) Arc(TM) B580 Graphics"


@pytest.fixture(scope="module")
def level_zero(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the variables of a machine with the pretend Level Zero loader, and an OpenCL loader that is broken."""
    if COMPILER is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("level-zero")
    source = folder / "loader.c"
    source.write_text(LEVEL_ZERO)
    library = folder / "libze_loader.so.1"
    subprocess.run([COMPILER, "-shared", "-fPIC", "-w", "-o", str(library), str(source)], check=True)
    (folder / "libOpenCL.so.1").write_bytes(b"this is no library")
    return {"LD_LIBRARY_PATH": str(folder)}


def codes(report: ProbeReport) -> list[str]:
    """Return the codes of a report's problems that are about Level Zero (OpenCL's loader is broken on purpose)."""
    return [problem.code for problem in report.problems if problem.code != "no-opencl"]


@pytest.mark.parametrize(
    ("packed", "text"), [(0x05004000, "20.1.0"), (0x030F0007, "12.60.7"), (0x07800004, "30.0.4"), (0, "0.0.0")]
)
def test_ip_version(packed: int, text: str) -> None:
    assert ip_text(packed) == text


def test_packed_driver_version() -> None:
    assert version_text(0x01067A75) == "1.6.31349"


def test_answer_is_apart_from_what_drivers_print(level_zero: dict[str, str]) -> None:
    command = [sys.executable, "-I", str(PROBE), "--backend", "level-zero", "--fd", "{}"]
    reading, writing = os.pipe()
    command[-1] = str(writing)
    done = subprocess.run(
        command, env={**os.environ, **level_zero}, pass_fds=(writing,), capture_output=True, check=True
    )
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        found = json.loads(answer.read())
    assert found["environments"] == [[V1, ARC, "20.1.1", "1.6.31349+8"], [V2, ARC, "20.1.1", "1.6.31349+8"]]
    assert b"environments" in done.stdout
    assert b"says hello" in done.stderr


def test_answer_on_stdout_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "xpucached.libexec.driver_probe", "--backend", "opencl"],
        cwd=PROBE.parent.parent,
        capture_output=True,
        check=True,
    )
    assert set(json.loads(done.stdout)) == {"environments", "problems"}


def test_level_zero_gpu_has_an_environment_per_adapter(level_zero: dict[str, str]) -> None:
    report = ask(level_zero, 30)
    assert report.answers == (
        DriverAnswer(V1, ARC, "20.1.1", "1.6.31349+8"),
        DriverAnswer(V2, ARC, "20.1.1", "1.6.31349+8"),
    )
    assert codes(report) == []


def test_level_zero_driver_without_the_version_extension(level_zero: dict[str, str]) -> None:
    report = ask({**level_zero, "FAKE": "old"}, 30)
    assert {environment.driver for environment in report.answers} == {"1.6.31349"}


@pytest.mark.parametrize(
    ("fake", "code"),
    [
        ("absent", "no-level-zero-driver"),
        ("empty", "no-level-zero-driver"),
        ("lost", "level-zero-error"),
        ("halfway", "level-zero-error"),
        ("crash", "probe-crashed"),
    ],
)
def test_level_zero_that_fails(level_zero: dict[str, str], fake: str, code: str) -> None:
    report = ask({**level_zero, "FAKE": fake}, 30)
    assert report.answers == ()
    assert codes(report) == [code]


def test_crash_is_told_with_the_drivers_last_words(level_zero: dict[str, str]) -> None:
    report = ask({**level_zero, "FAKE": "crash"}, 30)
    (problem,) = [one for one in report.problems if one.code == "probe-crashed"]
    assert "SIGSEGV" in problem.message
    assert "driver 1.2 says hello" in problem.message


def test_level_zero_that_hangs(level_zero: dict[str, str]) -> None:
    report = ask({**level_zero, "FAKE": "hang"}, 1.5)
    assert codes(report) == ["probe-timed-out"]


def test_wild_count_is_not_believed(level_zero: dict[str, str]) -> None:
    assert len(ask({**level_zero, "FAKE": "wild"}, 30).answers) == 2


def test_broken_loaders_are_problems_that_say_the_cost(tmp_path: Path) -> None:
    for name in ("libOpenCL.so.1", "libze_loader.so.1"):
        (tmp_path / name).write_bytes(b"this is no library")
    report = ask({"LD_LIBRARY_PATH": str(tmp_path)}, 30)
    assert report.answers == ()
    assert [problem.code for problem in report.problems] == ["no-opencl", "no-level-zero"]
    assert all("are not seen" in problem.message and problem.hint for problem in report.problems)


# -- several drivers, of which one fails ---------------------------------------------------------------------------

# Of three platforms the first fails, and the second is another vendor's; of two Level Zero drivers the first fails.
SEVERAL = r"""
#include <stdint.h>
#include <string.h>
typedef void *handle;
static int list(int most, unsigned room, handle *into, unsigned *count) {
  for (int at = 0; into && at < most && at < room; at++) into[at] = (handle)(intptr_t)(at + 1);
  if (count) *count = most;
  return 0;
}
static int text(const char *what, size_t room, char *into, size_t *size) {
  if (size) *size = strlen(what) + 1;
  if (into) strncpy(into, what, room);
  return 0;
}
int clGetPlatformIDs(unsigned room, handle *into, unsigned *count) { return list(3, room, into, count); }
int clGetPlatformInfo(handle one, unsigned what, size_t room, char *into, size_t *size) {
  return text(one == (handle)2 ? "Other" : "Intel", room, into, size);
}
int clGetDeviceIDs(handle one, uint64_t kinds, unsigned room, handle *into, unsigned *count) {
  return one == (handle)1 ? -6 : list(1, room, into, count);
}
int clGetDeviceInfo(handle one, unsigned what, size_t room, char *into, size_t *size) {
  return text(what == 0x102B ? "GPU" : "1", room, into, size);
}
handle clCreateContext(void *p, unsigned n, handle *d, void *f, void *u, int *status) { *status = 0; return (handle)1; }
handle clCreateProgramWithSource(void) { return 0; }
handle clCreateProgramWithIL(handle c, const void *image, size_t size, int *status) { *status = 0; return (handle)1; }
int clBuildProgram(void) { return 0; }
int clReleaseProgram(handle one) { return 0; }
int clGetProgramInfo(handle one, unsigned what, size_t room, void **into, size_t *size) {
  if (what == 0x1165) *(size_t *)into = 4; else memcpy(*into, "made", 4);
  return 0;
}
struct device { uint32_t stype; void *next; uint32_t type, vendor; char rest[400]; };
int zeInit(uint32_t flags) { return 0; }
int zeDriverGet(uint32_t *count, handle *into) { return list(2, into ? *count : 0, into, count); }
int zeDriverGetExtensionFunctionAddress(void) { return 1; }
int zeDriverGetProperties(handle one, void *into) { return one == (handle)1 ? 0x70000001 : 0; }
int zeDeviceGet(handle one, uint32_t *count, handle *into) { return list(1, into ? *count : 0, into, count); }
int zeDeviceGetProperties(handle one, struct device *into) { into->type = 1; into->vendor = 0x8086; return 0; }
int zeContextCreate(handle one, void *d, handle *into) { *into = one; return one == (handle)2 ? 0 : 1; }
int zeModuleCreate(handle c, handle d, void *what, handle *into, handle *log) { *into = (handle)1; return 0; }
int zeModuleDestroy(handle one) { return 0; }
int zeModuleGetNativeBinary(handle one, size_t *size, char *into) {
  if (into) memcpy(into, "made", 4); else *size = 4;
  return 0;
}
int urLoaderInit(unsigned flags, void *config) { return 0; }
int urAdapterGet(unsigned room, handle *into, unsigned *count) { return list(2, room, into, count); }
int urPlatformGet(handle one, unsigned room, handle *into, unsigned *count) { return list(1, room, into, count); }
int urDeviceGet(handle one, int kind, unsigned room, handle *into, unsigned *count) {
  static int asked;
  return asked++ ? list(1, room, into, count) : 5;
}
int urPlatformGetInfo(handle one, int what, size_t room, char *into, size_t *size) {
  return text("Intel", room, into, size);
}
int urDeviceGetInfo(handle one, int what, size_t room, char *into, size_t *size) {
  return text(what == 67 ? "Intel" : what == 69 ? "FULL_PROFILE" : what == 66 ? "GPU" : "1", room, into, size);
}
"""


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where the libraries lie of a machine with several drivers, of which the first fails."""
    if COMPILER is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("several")
    (folder / "drivers.c").write_text(SEVERAL)
    for name in ("libOpenCL.so.1", "libze_loader.so.1", "libur_loader.so.0"):
        made = ("-shared", "-fPIC", "-w", "-o", str(folder / name))
        subprocess.run([COMPILER, *made, str(folder / "drivers.c")], check=True)
    return folder


@pytest.mark.parametrize("backend", ["opencl", "level-zero"])
def test_what_one_driver_fails_in_another_compiles(several: Path, backend: str) -> None:
    def compiled(device: str | None) -> bytes:
        spec = CompilerSpec(("--backend", backend, "--environment", json.dumps([None, device, None, None])))
        compiler = CompilerProcess({**os.environ, "LD_LIBRARY_PATH": str(several)}, spec, INSTANCE)
        try:
            return compiler.build(Recipe(EntryId(Store(sycl.NAME, several), EntryKey("a")), b"", b""), Event())[0]
        finally:
            compiler.close()

    assert compiled(None) == b"made"
    with pytest.raises(NoCompiler, match="gave"):
        compiled("none that there is")


def test_a_runtime_s_devices_are_seen_though_one_of_its_adapters_fails(several: Path) -> None:
    report = ask_runtime(several, {}, 30)
    assert report.answers == (DriverAnswer("Intel", "GPU", "1", "1"),)
    assert [one.code for one in report.problems] == ["runtime-error"]


# -- real drivers -------------------------------------------------------------------------------------------------


def real(runtime: Path, driver: Path, folder: Path) -> dict[str, str]:
    """Return the variables under which programs of a runtime use a driver, and no other that this machine may have."""
    (folder / "vendors").mkdir(exist_ok=True)
    return {
        "LD_LIBRARY_PATH": str(runtime / "lib"),
        "OCL_ICD_FILENAMES": str(driver / "lib/libintelocl.so"),
        "OCL_ICD_VENDORS": str(folder / "vendors"),
    }


PROGRAM = "import dpctl.tensor as t; x = t.arange(8, dtype='i4'); print((x + x).shape)"


@pytest.mark.runtime
@pytest.mark.parametrize(
    ("runtime", "driver"), [("rt2025.2", "rt2025.2"), ("rt2025.2", "drv2025.3"), ("rt2024.2", "rt2024.2")]
)
def test_environment_is_what_a_real_program_writes(runtimes: Path, tmp_path: Path, runtime: str, driver: str) -> None:
    if not (runtimes / runtime).is_dir() or not (runtimes / driver).is_dir():
        pytest.skip("this runtime is not here")
    variables = real(runtimes / runtime, runtimes / driver, tmp_path)
    cache = tmp_path / "cache"
    subprocess.run(
        [str(runtimes / runtime / "bin/python"), "-c", PROGRAM],
        env={**os.environ, **variables, "SYCL_CACHE_PERSISTENT": "1", "SYCL_CACHE_DIR": str(cache)},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    written = set()
    for source in cache.rglob("*.src"):
        data = source.read_bytes()
        (length,) = struct.unpack_from("<Q", data)
        written.add(data[8 : 8 + length].decode())
    report = ask(variables, 50)
    assert len(written) == 1
    assert [identity(target_of(one)) for one in report.answers if "OpenCL" in one.platform] == [*written]


@pytest.mark.runtime
def test_driver_that_is_no_library(runtimes: Path, tmp_path: Path) -> None:
    garbage = tmp_path / "libintelocl.so"
    garbage.write_bytes(os.urandom(4096))
    variables = real(runtimes / "rt2025.2", tmp_path, tmp_path) | {"OCL_ICD_FILENAMES": str(garbage)}
    report = ask(variables, 30)
    assert [one for one in report.answers if "OpenCL" in one.platform] == []
    assert "no-opencl-driver" in {problem.code for problem in report.problems}


ASKING = """
import sys
from xpucached.processes import driver_probe
driver_probe.ask({"LD_LIBRARY_PATH": sys.argv[1]}, backends=("opencl",))
"""
COMPILING = """
import sys, threading
from pathlib import Path
from xpucached.domain.names import EntryKey, KindName
from xpucached.domain.plans import CompilerSpec, Recipe
from xpucached.domain.stores import EntryId, Store
from xpucached.processes.compiler import CompilerProcess
spec = CompilerSpec(("--backend", "opencl", "--environment", "[null, null, null, null]"))
recipe = Recipe(EntryId(Store(KindName("sycl"), Path("/")), EntryKey("0")), b"", b"", {})
CompilerProcess({"LD_LIBRARY_PATH": sys.argv[1]}, spec, "test").build(recipe, threading.Event())
"""


@pytest.mark.parametrize("command", [("-c", ASKING), ("-c", COMPILING), ("-m", "xpucached.cli", "fingerprint")])
def test_where_a_driver_hangs_nobody_outlives_who_asked_it(tmp_path: Path, command: tuple[str, ...]) -> None:
    driver = tmp_path / "libOpenCL.so.1"
    os.mkfifo(driver)
    variables = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "HOME": str(tmp_path), "PYTHONPATH": str(REPOSITORY)}
    words = [sys.executable, *command, *([str(tmp_path)] if command[0] == "-c" else [])]
    asking = subprocess.Popen(words, env=variables, stdout=subprocess.DEVNULL, start_new_session=True)
    # As soon as a process loads it, which waits for what it reads there.
    writing = os.open(driver, os.O_WRONLY)
    try:
        os.killpg(asking.pid, signal.SIGINT if command[0] == "-m" else signal.SIGKILL)
        asking.wait()
        readers = select.poll()
        readers.register(writing, 0)
        assert readers.poll(30_000) == [(writing, select.POLLERR)]
    finally:
        os.close(writing)
