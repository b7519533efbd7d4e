# Two commands on a bare machine: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt

.PHONY: help demo docs test test-slow test-stress test-gpu test-spark test-ray check format clean \
	bench-combine bench-engine bench-audit bench-learners bench-search bench-dial bench-hf bench-users bench-table1

help:
	@echo "make demo           install what the demo needs, compare four retrains and write a report page"
	@echo "make test           install the dev extra and run the whole suite"
	@echo "make test-slow      the long statistical checks as well"
	@echo "make test-stress    fuzzing, kills and determinism of every command"
	@echo "make test-spark     the audit on a local Spark (needs Java)"
	@echo "make test-ray       work on a Ray cluster of several nodes on this machine"
	@echo "make docs           build the site into site/, run its examples and look at it in a browser"
	@echo "make check          ruff (lint and format) and mypy"
	@echo "make format         let ruff rewrite the files"
	@echo "make test-gpu       the checks that need a CUDA device"
	@echo "make bench-combine  time the convex program of Algorithm 1"
	@echo "make bench-engine   time the engine beside torch, scikit-learn and Keras"
	@echo "make bench-audit    time the audit at 10 million rows beside pandas (ARGS='--rows ...')"
	@echo "make bench-learners time soft targets against hard labels in LightGBM and XGBoost"
	@echo "make bench-search   trainings, churn and accuracy of the search against the full grid"
	@echo "make bench-dial     the dial at budgets on unseen rows beside distillation (needs LOWCHURN_DATA)"
	@echo "make bench-hf       weight interpolation on IMDB beside distillation and sticky decisions (needs LOWCHURN_DATA)"
	@echo "make bench-users    13 learners at budgets beside a margin rule by hand (needs LOWCHURN_DATA; hours)"
	@echo "make bench-table1   Table 1 of the paper with 5 trials (needs LOWCHURN_DATA)"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV) || ($(PYTHON) -m pip install --user virtualenv && $(PYTHON) -m virtualenv $(VENV))

# A stamp for each level of install, so that a second call reuses the environment.
$(VENV)/.core: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) -e .
	@touch $@

$(VENV)/.audit: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) -e ".[audit]"
	@touch $@ $(VENV)/.core

$(VENV)/.dev: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) -e ".[dev]"
	@touch $@ $(VENV)/.core $(VENV)/.audit

$(VENV)/.docs: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) -e ".[dev,docs]"
	@touch $@ $(VENV)/.dev $(VENV)/.core

demo: $(VENV)/.audit
	$(BIN)/lowchurn demo

test: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "not slow and not stress and not gpu and not spark and not ray and not site"

test-slow: $(VENV)/.dev
	$(BIN)/python -m pytest --hypothesis-profile=drawn -n 2 -m "not stress and not gpu and not spark and not ray and not site"

# Nothing is loaded from the network, and every warning is an error. Only pages that changed are built again.
docs: $(VENV)/.docs
	OMP_NUM_THREADS=1 MPLBACKEND=Agg $(BIN)/python -m sphinx -W --keep-going -q -d site/.doctrees docs site
	$(BIN)/python -m pytest -q -m site tests/site
	@echo "open site/index.html"

test-stress: $(VENV)/.dev
	$(BIN)/python -m pytest --hypothesis-profile=drawn -n 2 -m stress tests

$(VENV)/.spark: $(VENV)/.dev
	$(PIP) -e ".[spark]"
	@touch $@

test-spark: $(VENV)/.spark
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m spark tests/audit $(ARGS)

$(VENV)/.ray: $(VENV)/.dev
	$(PIP) -e ".[ray]"
	@touch $@

test-ray: $(VENV)/.ray
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m ray tests/cluster

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench-combine: $(VENV)/.core
	$(BIN)/python benchmarks/combine.py

# Keras with its jax backend is only what we compare with, so no extra asks for it.
bench-engine: $(VENV)/.dev
	$(PIP) keras tensorflow-cpu jax
	$(BIN)/python benchmarks/engine.py

test-gpu: $(VENV)/.dev
	$(BIN)/python -m pytest -m gpu

bench-audit: $(VENV)/.dev
	$(BIN)/python benchmarks/audit.py $(ARGS)

bench-learners: $(VENV)/.dev
	$(BIN)/python benchmarks/learners.py

bench-search: $(VENV)/.dev
	$(BIN)/python benchmarks/search.py

bench-dial: $(VENV)/.dev
	$(BIN)/python benchmarks/dial.py $(ARGS)

bench-hf: $(VENV)/.dev
	$(BIN)/python benchmarks/huggingface.py $(ARGS)

bench-users: $(VENV)/.dev
	$(BIN)/python benchmarks/users.py run $(ARGS) --out out/users.jsonl
	$(BIN)/python benchmarks/users.py tables out/users.jsonl

bench-table1: $(VENV)/.dev
	$(BIN)/lowchurn bench run openml --trials 5 --store out/table1
	$(BIN)/lowchurn bench report --store out/table1 --out out/table1-report

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache \
		site docs/auto_examples docs/api/generated docs/results/tables.zip
