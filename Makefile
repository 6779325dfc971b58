# SPDX-License-Identifier: Apache-2.0
# Needs Python 3.11 to 3.13 with venv, and make. Everything is installed into .venv.

PYTHON ?= python3
PYTEST_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
DEMO := examples/llama-70b-disaggregated.yaml
DEMO_TOPOLOGY := h100-rail-1su
DEMO_RUN := runs/demo

.PHONY: help demo test lint types imports pytest format clean

help: ## Say what can be made
	@grep -E '^[a-z]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 12

demo: $(VENV)/.runtime ## Serve Llama-3.1-70B on 256 emulated H100s, and draw the fabric
	$(BIN)/railweave run $(DEMO) -o $(DEMO_RUN) --timeline 96 --force
	$(BIN)/railweave topo draw $(DEMO_TOPOLOGY) --run $(DEMO_RUN) -o $(DEMO_RUN)/fabric.svg --force
	$(BIN)/railweave report $(DEMO_RUN) --force
	@echo "The run is in $(DEMO_RUN); open $(DEMO_RUN)/report.html, or the drawing fabric.svg beside it"

test: lint types imports pytest ## Run every check

lint: $(VENV)/.dev ## Check style and format
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(VENV)/.dev ## Check types
	$(BIN)/mypy -p railweave

imports: $(VENV)/.dev ## Check that imports go down
	$(BIN)/lint-imports

pytest: $(VENV)/.dev ## Run the tests and the examples in docstrings
	$(BIN)/pytest --doctest-modules $(PYTEST_ARGS) tests --pyargs railweave

format: $(VENV)/.dev ## Rewrite the sources in the project's format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean: ## Remove what was made, and the virtual environment
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis \
		.import_linter_cache .benchmarks runs/demo
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || { \
		echo "railweave needs Python 3.11 to 3.13; choose one with: make PYTHON=python3.12" >&2; \
		exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "No virtual environment: on Debian or Ubuntu, apt-get install python3-venv" >&2; \
		exit 1; }

# The stamps make a second "make" fast: pip runs again only when the project file has changed.
$(VENV)/.runtime: pyproject.toml setup.py | $(BIN)/python
	$(PIP) --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml setup.py | $(BIN)/python
	$(PIP) --editable '.[dev]'
	@touch $@ $(VENV)/.runtime
