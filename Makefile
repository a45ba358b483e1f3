# specfleet: `make run` starts the quickstart and shows what it does, `make stop` stops it, `make test` tests it.

CONFIG ?= configs/quickstart.yaml
PYTHON ?= python3.11
STAMP := .venv/.specfleet-ready
SPECFLEET := .venv/bin/specfleet
PYTEST := .venv/bin/python -m pytest

# Tests share few cores with the engines they start, and need nothing from a hub.
TEST_ENV := OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 RAY_USAGE_STATS_ENABLED=0

.PHONY: run stop setup lint test test-long lock

run: setup
	@$(SPECFLEET) up $(CONFIG)
	@$(SPECFLEET) demo $(CONFIG)

stop:
	@if [ -x $(SPECFLEET) ]; then $(SPECFLEET) down $(CONFIG); else echo "nothing is installed, so nothing runs"; fi

setup: $(STAMP)

$(STAMP): configs/environment/cpu.lock.txt configs/environment/setup.sh pyproject.toml
	@PYTHON=$(PYTHON) configs/environment/setup.sh

lint: setup
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports

# What fails fast comes first: style and types, then tests in one process, then real engines and clusters.
test: lint
	$(TEST_ENV) $(PYTEST) -q --durations=15 -m "not process and not engine and not e2e and not long"
	$(TEST_ENV) $(PYTEST) -q --durations=15 -m "(process or engine or e2e) and not long"

test-long: setup
	$(TEST_ENV) $(PYTEST) -q --durations=15 -m long

lock:
	@PYTHON=$(PYTHON) configs/environment/lock.sh
