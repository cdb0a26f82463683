"""Which variables make an application find what was warmed."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from tests.support.api_stub import make_model
from xpucached.domain.host import digest_of_variables
from xpucached.domain.workloads import Loader, RunSpec
from xpucached.service import program_variables
from xpucached.settings import loading


def test_all_that_leads_to_what_was_warmed_is_given_and_nothing_else(tmp_path: Path) -> None:
    base = loading.load(None, user=True, environ={"HOME": str(tmp_path), "XDG_RUNTIME_DIR": "/r"})
    driver = replace(base.driver, variables={"OCL_ICD_VENDORS": "/opt/v", "TOKEN": "secret", "SYCL_CACHE_DIR": "/no"})
    settings = replace(base, driver=driver)
    model = make_model().model
    said = {"TRITON_CACHE_DIR": "/mine", "OCL_ICD_VENDORS": "/model", "PATH": "/bin", "ONEAPI_DEVICE_SELECTOR": "*:gpu"}
    # Each of these decides which entries a program asks for, by its runtime's version.
    adapter = {"SYCL_UR_USE_LEVEL_ZERO_V2": "0", "UR_LOADER_USE_LEVEL_ZERO_V2": "0"}
    said |= adapter
    command = replace(model, workload=replace(model.workload, variables=said))
    exercise = RunSpec(loader=Loader.TORCHSCRIPT, python="/p", target="/m", inputs="random", device="xpu")
    loaded = replace(command, workload=replace(command.workload, exercise=exercise))

    assert program_variables.of_application(settings, None, {}) == {"OCL_ICD_VENDORS": "/opt/v"}
    led = {"OCL_ICD_VENDORS": "/model", "ONEAPI_DEVICE_SELECTOR": "*:gpu", "TRITON_CACHE_DIR": "/mine", **adapter}
    assert program_variables.of_application(settings, command, {}) == led
    place = settings.paths.cache / "models" / model.name
    # A command's other caches count once something lies there; it runs with them before, too.
    (place / "cuda").mkdir(parents=True)
    assert program_variables.of_application(settings, command, {}) == led
    (place / "inductor/fxgraph").mkdir(parents=True)
    used = {"TORCHINDUCTOR_CACHE_DIR": str(place / "inductor"), "TORCHINDUCTOR_FX_GRAPH_CACHE": "1"}
    assert program_variables.of_application(settings, command, {}) == led | used
    assert program_variables.further(settings, command) == program_variables.further(settings, loaded)
    assert program_variables.of_application(settings, loaded, {}) == {
        **led,
        "TORCHINDUCTOR_CACHE_DIR": str(place / "inductor"),
        "CUDA_CACHE_PATH": str(place / "cuda"),
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "1",
    }
    # What runs of it get besides is the same.
    given = {**program_variables.given(settings, loaded), **program_variables.further(settings, loaded)}
    assert given.items() >= program_variables.of_application(settings, loaded, {}).items()


def test_what_the_daemon_s_own_variables_make_runs_compile_programs_are_given_too(tmp_path: Path) -> None:
    settings = loading.load(None, user=True, environ={"HOME": str(tmp_path), "XDG_RUNTIME_DIR": "/r"})
    steps = {"SYCL_PROGRAM_COMPILE_OPTIONS": "-g"}
    own = {**steps, "ONEAPI_DEVICE_SELECTOR": "*:gpu", "ZE_AFFINITY_MASK": "0", "LD_LIBRARY_PATH": "/o", "TOKEN": "1"}
    assert program_variables.of_application(settings, None, own) == steps
    model = make_model().model
    said = replace(model, workload=replace(model.workload, variables={"ONEAPI_DEVICE_SELECTOR": "*:cpu"}))
    assert program_variables.of_application(settings, said, own) == {**steps, "ONEAPI_DEVICE_SELECTOR": "*:cpu"}
    given = {**own, "LD_LIBRARY_PATH": "/p"}, {**own, "ZE_AFFINITY_MASK": "1"}
    assert len({digest_of_variables(program_variables.steering(settings, one)) for one in given}) == 2
    # Whoever starts the daemon with others has proven nothing for them.
    known = {digest_of_variables(program_variables.steering(settings, one)) for one in ({}, own, {**own, "TOKEN": "2"})}
    assert len(known) == 2
