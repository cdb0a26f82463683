# The commands after a clone: `make demo` and `make test`.  Needs Python 3.11 or newer with venv; see README.md.

PYTHON ?= python3
RUNTIMES := $(or $(XPUCACHED_RUNTIMES),.runtimes)
BIN := .venv/bin

.DELETE_ON_ERROR:
.PHONY: help test runtimes machines compiled lint man dist deb rpm demo demo-gpu record screenshots fuzz mutants stress bench clean

help:
	@echo 'make demo    show a cold start, a warm one, and a driver upgrade, on this machine, without root'
	@echo 'make demo-gpu the same with the cache of the GPU driver, oneDNN and a simulated GPU'
	@echo 'make test    check the style, the types and all the tests; with FAST=1 the unit tests only'
	@echo 'make lint    check the style and the types'
	@echo 'make man     write man pages, shell completions and an example configuration'
	@echo 'make dist    build the source archive and the wheel, with those, into dist'
	@echo 'make deb     build a package for Debian and Ubuntu into dist'
	@echo 'make rpm     build a package with the same content for distributions with rpm into dist'
	@echo 'make fuzz    look for bytes that break a reader or the socket: FUZZ_SECONDS (600) for each of them'
	@echo 'make mutants put MUTANTS (20) faults into each room, one at a time, and see whether its unit tests find them'
	@echo 'make stress  real programs on one store for two minutes while all goes wrong, 10,000 evictions beside the'
	@echo '             GPU driver, a death at every change, and at 200 random ones of bundles, and the daemon killed at'
	@echo '             STRESS_KILLS (500) random moments'
	@echo 'make bench   measure us and others at 10,000 to a million entries, and write docs/performance.md (BENCH_SIZES)'
	@echo 'make record  run the demos and make docs/demo.svg and docs/demo-gpu.svg of them'
	@echo 'make screenshots  make the pictures of the page in docs (needs Chromium)'
	@echo 'make clean   remove what these commands made here (.venv, .runtimes, caches)'

# Tests wait for other programs much of the time, unit tests less.  Each file's run in one process, one after the
# other.  A test that fails is run again after a pause, twice at most, and all are listed: real programs on a busy
# machine may miss a moment that a test waits for, and are as busy at once after.  What hangs where no clock of a test
# reaches it ends its process, which says where it was; all its tries would have ended long before.
LONGEST_TEST := -o faulthandler_timeout=1900 -o faulthandler_exit_on_timeout=true
ifdef FAST
TEST_PROCESSES ?= 4
test: .venv/tested
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(TEST_PROCESSES) -m unit
else
TEST_PROCESSES ?= 6
test: .venv/tested
	$(MAKE) --no-print-directory --jobs=4 lint compiled runtimes machines
	XPUCACHED_RUNTIMES=$(RUNTIMES) XPUCACHED_REQUIRE_RUNTIMES=1 $(BIN)/python -m pytest -n $(TEST_PROCESSES) --reruns 2 --reruns-delay 10 --rerun-show-tracebacks -ra $(LONGEST_TEST)
endif

# To install waits for the network as long as for a processor.
runtimes:
	$(PYTHON) tools/runtimes.py $(RUNTIMES) --test
	$(PYTHON) tools/gpu_driver.py $(RUNTIMES)/gpu-driver --optional
	$(PYTHON) tools/gpu_driver.py $(RUNTIMES)/gpu-driver-older --older --optional

machines: .venv/tested
	for suite in bookworm trixie; do $(PYTHON) tools/debian.py $(RUNTIMES)/debian --suite $$suite --optional || exit; done
	$(BIN)/python tools/tree.py $(RUNTIMES)/debian/wheels --optional

# Tests start Python thousands of times, and each of their processes would compile all by itself.  What cannot be
# collected the tests tell.
compiled: .venv/tested
	$(BIN)/python -m compileall -q migrations tests tools xpucached
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --collect-only -q >/dev/null || true

# The same seed puts the same faults into the code.
MUTANTS ?= 20
MUTANTS_SEED ?= 1
mutants: .venv/tested
	$(BIN)/python tools/mutants.py --count $(MUTANTS) --seed $(MUTANTS_SEED) $(ROOMS)

lint: .venv/tested
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

man: .venv/tested
	$(BIN)/python tools/manual.py

# The wheel is built from what the source archive holds.
dist: .venv/developed man
	SOURCE_DATE_EPOCH=$$($(BIN)/python tools/source_date.py) $(BIN)/python -m build --no-isolation --outdir dist .
	$(BIN)/python -m twine check --strict dist/xpucached-*.tar.gz dist/xpucached-*.whl

deb: dist
	SOURCE_DATE_EPOCH=$$($(BIN)/python tools/source_date.py) \
	    $(BIN)/python tools/make_deb.py $$(ls -t dist/xpucached-*.whl | head -1)

rpm: dist
	SOURCE_DATE_EPOCH=$$($(BIN)/python tools/source_date.py) \
	    $(BIN)/python tools/make_rpm.py $$(ls -t dist/xpucached-*.whl | head -1)

demo: .venv/installed
	$(PYTHON) tools/runtimes.py $(RUNTIMES) --demo
	$(BIN)/python demo/demo.py --runtimes $(RUNTIMES)

demo-gpu: .venv/installed
	$(PYTHON) tools/runtimes.py $(RUNTIMES) rt2025.2 onednn3.7
	$(PYTHON) tools/gpu_driver.py $(RUNTIMES)/gpu-driver
	$(BIN)/python demo/gpu.py --runtimes $(RUNTIMES)

record: .venv/installed
	$(PYTHON) tools/runtimes.py $(RUNTIMES) --demo
	$(PYTHON) tools/runtimes.py $(RUNTIMES) onednn3.7
	$(PYTHON) tools/gpu_driver.py $(RUNTIMES)/gpu-driver
	$(BIN)/python demo/record.py --output docs/demo.svg -- $(BIN)/python demo/demo.py --runtimes $(RUNTIMES)
	$(BIN)/python demo/record.py --output docs/demo-gpu.svg -- $(BIN)/python demo/gpu.py --runtimes $(RUNTIMES)

screenshots: .venv/tested
	$(BIN)/python tools/screenshots.py

# Whether pip was done is remembered in a file, so that only a change of the project's needs starts it again.  A plain
# path to this directory lets each Python start in half the time that a finder of setuptools' takes, which is its default.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --config-settings editable_mode=compat --editable
.venv/installed: pyproject.toml setup.py
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=…")'
	$(PYTHON) -m venv .venv
	$(INSTALL) .
	touch $@

.venv/tested: .venv/installed
	$(INSTALL) '.[test]'
	touch $@

.venv/developed: .venv/tested
	$(INSTALL) '.[dev]'
	touch $@

# What was reached is kept in .fuzz, and the next round begins there.
FUZZ_SECONDS ?= 600
FUZZ_TARGETS ?= source binary image name trace zebin_entry lookup slot configuration our_settings label library catalog message request http device_code program wheel bundle
fuzz: .venv/tested
	for one in $(FUZZ_TARGETS); do \
	    $(BIN)/python -m tests.fuzz $$one --seconds $(FUZZ_SECONDS) --corpus .fuzz || exit; \
	done

# The same seed gives the same moments, as far as the machine's speed is the same.
STRESS_KILLS ?= 500
STRESS_SEED ?= 1
stress: .venv/tested
	$(PYTHON) tools/runtimes.py $(RUNTIMES) --test
	$(PYTHON) tools/gpu_driver.py $(RUNTIMES)/gpu-driver --optional
	$(PYTHON) tools/gpu_driver.py $(RUNTIMES)/gpu-driver-older --older --optional
	XPUCACHED_RUNTIMES=$(RUNTIMES) XPUCACHED_REQUIRE_RUNTIMES=1 XPUCACHED_STRESS_SECONDS=120 \
	    XPUCACHED_STRESS_EVICTIONS=10000 XPUCACHED_STRESS_KILLS=200 \
	    $(BIN)/python -m pytest tests/system/test_stress.py tests/system/test_stress_neo.py tests/system/test_faults.py \
	    tests/system/test_bundle_kills.py --timeout=3600
	$(BIN)/python -m tests.support.kills --runtimes $(RUNTIMES) --kills $(STRESS_KILLS) --seed $(STRESS_SEED)

# Stores are made once and kept in .bench: 0.4 GB for 10,000 entries, 4 GB for 100,000, 25 GB for a million.
BENCH_SIZES ?= 10000,100000,1000000
BENCH_ROUNDS ?= 5
bench: compiled
	$(BIN)/python bench/suite.py --sizes $(BENCH_SIZES) --rounds $(BENCH_ROUNDS) --write

clean:
	rm -rf .venv .runtimes .fuzz .bench .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist xpucached/data/manual *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
