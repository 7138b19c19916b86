# evalstop: everything is done in a virtual environment of its own, made on first use.
#   make demo    one queue of real training jobs, with evalstop and without, side by side (80 s)
#   make test    run the tests
#   make check   formatter, linter, types, layers
#   make bench   speed, with the bounds that must hold
#   make docs    build the documentation into site/
#   make lock    pin the dependencies again after a change of pyproject.toml
# Settings: VENV (where the environment lies), PYTHON (which Python makes it), ARGS (for pytest).

VENV   ?= .venv
PYTHON ?= python3
ARGS   ?=
BIN    := $(VENV)/bin
# Bytecode is made for what is imported, when it is: twice as fast as for all that is installed.
PIP    := --quiet --no-compile

# In CI the tests are the gate: any skip fails, and so does code that no test reaches.
ifdef CI
GATES := --no-skips --cov --cov-append --cov-report= --coverage-gates
endif

.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help demo test check format bench docs lock clean

help:
	@sed -n 's/^#   //p' Makefile

demo: $(VENV)/.ready
	@$(BIN)/python examples/live/demo.py

test: $(VENV)/.ready
	@$(BIN)/python -m pytest $(GATES) $(ARGS)

check: $(VENV)/.ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.ready
	@missed=0; for file in benchmarks/bench_*.py; do \
	  echo "== $$file"; $(BIN)/python $$file || missed=1; done; exit $$missed

docs: $(VENV)/.ready
	$(BIN)/mkdocs build --strict

# The environment: pinned packages with hashes, then this package on top of them. It is made
# again when the pins or the package's own description change.
$(VENV)/.ready: constraints.txt pyproject.toml
	@$(PYTHON) tools/check_python.py
	@echo "evalstop: making the virtual environment $(VENV) (once; about 1 GB on disk, a minute or two)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install $(PIP) --require-hashes --requirement constraints.txt
	@echo "evalstop: installing evalstop itself into $(VENV)"
	@$(BIN)/python -m pip install $(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

# Heavy extras have an environment each: `make .venv-trl/.ready`. Torch is left to the machine
# (CPU or CUDA build), all else is pinned.
TORCH ?= torch==2.13.0
.venv-%/.ready: constraints-%.txt pyproject.toml
	@$(PYTHON) tools/check_python.py
	@echo "evalstop: making the virtual environment .venv-$* (once)"
	@$(PYTHON) -m venv .venv-$*
	@.venv-$*/bin/python -m pip install $(PIP) --no-deps --require-hashes --requirement constraints-$*.txt
	@if grep -q '^# needs torch' constraints-$*.txt; then .venv-$*/bin/python -m pip install $(PIP) $(TORCH); fi
	@.venv-$*/bin/python -m pip install $(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

lock:
	@PYTHON=$(PYTHON) bash tools/lock.sh

clean:
	rm -rf $(VENV) .venv-* site build dist htmlcov .coverage* .ci-runs .mypy_cache .ruff_cache .pytest_cache
