# Two commands on a bare machine: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt

.PHONY: help demo test test-slow check format bench-combine bench-table1 clean

help:
	@echo "make demo           install what the demo needs and run it"
	@echo "make test           install the dev extra and run the whole suite"
	@echo "make test-slow      the long statistical checks as well"
	@echo "make check          ruff (lint and format) and mypy"
	@echo "make format         let ruff rewrite the files"
	@echo "make bench-combine  time the convex program of Algorithm 1"
	@echo "make bench-table1   Table 1 of the paper with 5 trials (needs LOWCHURN_DATA)"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV) || ($(PYTHON) -m pip install --user virtualenv && $(PYTHON) -m virtualenv $(VENV))

# A stamp for each level of install, so that a second call reuses the environment.
$(VENV)/.core: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) -e .
	@touch $@

$(VENV)/.dev: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) -e ".[dev]"
	@touch $@ $(VENV)/.core

demo: $(VENV)/.core
	$(BIN)/lowchurn demo

test: $(VENV)/.dev
	$(BIN)/python -m pytest -m "not slow and not gpu"

test-slow: $(VENV)/.dev
	$(BIN)/python -m pytest -m "not gpu"

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench-combine: $(VENV)/.core
	$(BIN)/python benchmarks/combine.py

bench-table1: $(VENV)/.dev
	$(BIN)/lowchurn bench run openml --trials 5 --store out/table1
	$(BIN)/lowchurn bench report --store out/table1 --out out/table1-report

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
