# Lakefork: `make help` lists what there is. Needs Python >= 3.11, Java >= 17 and make.
SHELL := /bin/sh
PYTHON ?= python3
VENV := .venv
LAKEFORK := $(VENV)/bin/lakefork
# Compiled at once: where Python is told to keep no bytecode, as in many containers, each job would do it again.
UV := $(VENV)/bin/uv pip install --quiet --compile-bytecode --python $(VENV)/bin/python
# The certificates of the system, as pip uses them: they include those of a company's proxy. By itself uv has its own.
export UV_SYSTEM_CERTS ?= true
.DEFAULT_GOAL := help
.PHONY: help setup setup-dev check-tools run up down test lint format pictures wheel bench clean

help:  ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: check-tools $(VENV)/.ready  ## .venv, dependencies and the lakefork command (the others do it first)

setup-dev: check-tools $(VENV)/.ready-dev

check-tools:
	@PYTHON="$(PYTHON)" sh include/check_tools.sh

$(VENV)/bin/uv:
	@echo "setup: creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check uv 2>&1 | grep -v '^WARNING' || true
	@test -x $@ || { echo "setup: could not install uv into $(VENV); check that pip can reach a package index" >&2; exit 1; }

$(VENV)/.ready: requirements.txt constraints.txt pyproject.toml setup.py | $(VENV)/bin/uv
	@echo "setup: installing requirements.txt (about a minute the first time)"
	@$(UV) -r requirements.txt
	@$(UV) --no-deps --editable .
	@touch $@

$(VENV)/.ready-dev: requirements-dev.txt $(VENV)/.ready
	@echo "setup: installing requirements-dev.txt"
	@$(UV) -r requirements-dev.txt
	@touch $@

run: setup  ## start everything, load the demo, run every DAG once, print a report, stop everything
	@$(LAKEFORK) stack run

up: setup  ## start the stack and keep it running; prints the address and the login
	@$(LAKEFORK) stack up

down: setup  ## stop every process that the stack started
	@$(LAKEFORK) stack down

lint: setup-dev
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check --quiet .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/oxlint --quiet --deny-warnings plugins jobs

format: setup-dev  ## let ruff format the code
	@$(VENV)/bin/ruff check --fix --quiet .
	@$(VENV)/bin/ruff format --quiet .

test: lint  ## linters and the whole test suite
	@PYTHONDONTWRITEBYTECODE= $(VENV)/bin/python -m pytest --numprocesses 3 --no-loadscope-reorder $(ARGS)

pictures: setup-dev  ## retake the screenshots of the README with the tests of the page (needs Chromium)
	@SCREENSHOT_DIR=$(CURDIR)/.pictures $(VENV)/bin/python -m pytest -q tests/e2e/test_stack.py tests/e2e/test_stack_page.py
	@cp .pictures/overview.png .pictures/table.png docs/images/
	@rm -r .pictures

wheel: setup-dev  ## build dist/lakefork-*.whl, which works without this directory
	@$(VENV)/bin/uv build --quiet

bench: setup-dev  ## measure against peers (AREA=commit for one); prints ratios, writes bench.json
	@$(VENV)/bin/python -m tests.benchmarks $(AREA)

clean: down
	@rm -rf $(VENV) .lakefork
