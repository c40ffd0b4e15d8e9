# Each target sets up what it needs in .venv, from the lock files; nothing has to be installed by hand.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/pip --disable-pip-version-check -q
SOURCES := $(wildcard csrc/*) CMakeLists.txt pyproject.toml

.PHONY: demo test check test-all cover-sync bench clean

# torch first and from the lock: an open range would pull the CUDA build.
$(VENV)/core: requirements.lock
	@echo "Setting up $(VENV) (PyTorch and friends; a few minutes) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) install -r requirements.lock
	@touch $@

$(VENV)/built: $(VENV)/core $(SOURCES)
	@echo "Building the C++ core ..."
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/dev: requirements-dev.lock $(VENV)/core
	@$(PIP) install -r requirements-dev.lock
	@touch $@

demo: $(VENV)/built
	@$(BIN)/gearshift demo

# Many tests wait for processes and timers: three at a time keep two cores busy.
test: $(VENV)/built $(VENV)/dev
	$(BIN)/python -m pytest -n 3 --dist loadgroup

test-all: $(VENV)/built $(VENV)/dev cover-sync
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m "slow or not slow" --timeout=1800

# Strategies decide what counts: every branch of theirs is taken by their own tests.
cover-sync: $(VENV)/built $(VENV)/dev
	$(BIN)/python -m pytest -n 2 tests/unit/sync tests/traces --cov=gearshift.sync --cov-branch --cov-fail-under=100 --cov-report=term-missing:skip-covered

check: $(VENV)/built $(VENV)/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell src csrc tests benchmarks docs examples *.md
	@$(BIN)/python -P tests/size_table.py

# Accuracy on public data needs them: make bench DATA=folder with frappe/ and census/ in it.
bench: $(VENV)/built $(VENV)/dev
	@for b in store data step simulator wire; do echo "== bench_$$b"; $(BIN)/python benchmarks/bench_$$b.py || exit 1; done
ifdef DATA
	@for b in frappe census; do echo "== bench_$$b"; $(BIN)/python benchmarks/bench_$$b.py --data $(DATA)/$$b || exit 1; done
endif

clean:
	rm -rf build $(VENV)
