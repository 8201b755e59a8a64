# Two commands need nothing but python3 and make: `make demo` and `make test`. Each builds its environment when missing.
PYTHON ?= python3
VENV ?= .venv
NEW_VENV ?= .venv-newest
BIN := $(VENV)/bin
NEW_BIN := $(NEW_VENV)/bin
STAMP := $(VENV)/.installed
# two test processes: tracing and Python are serial, and only compiling uses both cores by itself
PYTEST ?= -m pytest -n 2 --dist loadfile

# The newest Python at hand, for the newest JAX: from pyenv, else from PATH; empty when there is none. It must run.
NEWEST := $(shell for v in 3.13.0 3.12.1; do \
    p="$$(pyenv prefix $$v 2>/dev/null)/bin/python"; [ -x "$$p" ] && echo "$$p" && exit 0; done; \
  for p in python3.14 python3.13 python3.12; do $$p -c '' 2>/dev/null && command -v $$p && exit 0; done; true)

.PHONY: docs demo test test-newest test-remat3 test-remat3-core test-wide test-settings coverage mutants newest-python lint types \
  format picture clean

demo: $(STAMP)
	$(BIN)/recoup demo

test: lint types
	$(BIN)/python $(PYTEST)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(STAMP)
	$(BIN)/mypy

# The same tests on the newest JAX, in an environment of its own.
test-newest:
ifeq ($(NEWEST),)
	@echo "test-newest: no Python 3.12 or newer found (pyenv or PATH); skipped"
else
	$(MAKE) --no-print-directory $(NEW_VENV)/.installed PYTHON=$(NEWEST) VENV=$(NEW_VENV)
	$(NEW_BIN)/python $(PYTEST)
endif

newest-python:
	@echo "$(NEWEST)"

# What JAX's global settings are tried on.
SETTINGS_TESTS := tests/spine/test_fit.py tests/spine/test_rewrite.py tests/breaking/test_programs.py \
  tests/breaking/test_check.py tests/regions/test_cases.py

# JAX's coming implementation of its own checkpoint must change nothing.
test-remat3: $(STAMP)
	JAX_REMAT3=1 $(BIN)/python $(PYTEST)

# Of those, what CI runs: the core.
test-remat3-core: $(STAMP)
	JAX_REMAT3=1 $(BIN)/python $(PYTEST) $(SETTINGS_TESTS)

# Wide checks, minutes to hours: the slow tests, property tests on new examples, half an hour of random programs, and
# what trust.md lists.
test-wide: $(STAMP)
	$(BIN)/python $(PYTEST) -m slow
	$(BIN)/python $(PYTEST) -m hypothesis --hypothesis-profile default
	$(BIN)/python -m benchmarks.fuzz --minutes 30 --size small
	$(MAKE) --no-print-directory test-settings

# The core tests under JAX's global settings; the cache is filled in one run and read in the next.
CACHED := JAX_COMPILATION_CACHE_DIR=$(VENV)/jax-cache JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0 \
  JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES=0
test-settings: $(STAMP)
	JAX_ENABLE_X64=1 $(BIN)/python $(PYTEST) $(SETTINGS_TESTS)
	JAX_DEBUG_NANS=1 $(BIN)/python $(PYTEST) $(SETTINGS_TESTS) -k "not nan"
	$(CACHED) $(BIN)/python $(PYTEST) $(SETTINGS_TESTS)
	$(CACHED) $(BIN)/python $(PYTEST) $(SETTINGS_TESTS)

# Line and branch coverage of what plans and rewrites, half an hour: the compiled modules are measured as plain Python.
PLAIN_TESTS := tests/solve/test_machine.py tests/breaking/test_annealing.py tests/spine/test_planner.py \
  tests/spine/test_machine.py tests/breaking/test_schedule_machines.py tests/breaking/test_plain_python.py
COVERAGE := COVERAGE_FILE=build/coverage/data $(BIN)/python -m coverage
coverage: $(STAMP)
	mkdir -p build/coverage && $(COVERAGE) erase
	$(COVERAGE) run $(PYTEST) tests/solve tests/spine tests/loops tests/memory tests/regions tests/report \
	  tests/breaking tests/fuzz tests/programs tests/frameworks tests/instruments tests/cli
	$(COVERAGE) run $(PYTEST) -p tests.pure $(PLAIN_TESTS)
	$(COVERAGE) combine -q && $(COVERAGE) json -q -o build/coverage/data.json
	$(BIN)/python -m benchmarks.covered build/coverage/data.json

# Small errors in the machines, the value numbering and rewriting: how many do the tests notice? Half an hour.
mutants: $(STAMP)
	$(BIN)/python -m pip install --quiet 'cosmic-ray>=8.4'
	$(BIN)/python -m benchmarks.mutants --log build/mutants.json

# The documentation site, into build/docs; warnings are errors, and so is a public name without documentation.
docs: $(STAMP)
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/docs
	@echo "docs: open build/docs/index.html"

# The README's picture, drawn from a real run of the demo.
picture: $(STAMP)
	$(BIN)/python docs/picture.py

# Inner loops are compiled at installation where there is a compiler: a change of it installs again.
TYPED := $(wildcard src/recoup/*/*.pxd)
ENGINE := setup.py $(TYPED) $(TYPED:.pxd=.py)

$(VENV)/.installed: pyproject.toml $(ENGINE)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	touch $@

clean:
	rm -rf $(VENV) $(NEW_VENV) build dist
