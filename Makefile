# ComputeFlow. `make demo` shows it, `make test` and `make live` prove it; each sets up .venv first.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Debian packages that the live tests need; `make system` installs them, `make live` skips without.
SYSTEM_PACKAGES := chromium e2fsprogs iproute2 mariadb-server munge prometheus prometheus-alertmanager slurm-wlm \
	slurmdbd slurmrestd strace tmux util-linux victoria-metrics
# The trainer and the probe are tested on CPUs; any torch from 2.6 on will do.
TORCH ?= torch==2.13.0
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --progress-bar off

export COMPUTEFLOW_DATA ?= $(abspath ../shared/data)

.PHONY: demo test live system proofs fuzz setup docs lint clean help

help:
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 16

setup: $(STAMP)

$(STAMP): pyproject.toml
	@echo "[setup] virtual environment in $(VENV), then the package, its tools and torch (some minutes)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "ComputeFlow needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --upgrade pip
	@$(PIP) -e '.[dev,fit,live,ray]' $(TORCH)
	@touch $@
	@echo "[setup] done: $(BIN)/computeflow"

DEMO_TRACE := tests/data/h200_traces/slow-loader-0.03.json.gz
DEMO_PLAN := plan llama-3.1-70b --on h100-sxm:512 --global-batch 1024 --seq-len 8192 --top 3
demo: $(STAMP)  ## probe this machine, plan a job, audit a real recording with findings in $$
	@mkdir -p build
	@echo '$$ computeflow probe --quick'
	@$(BIN)/computeflow probe --quick --quiet
	@echo
	@echo '$$ computeflow $(DEMO_PLAN)'
	@$(BIN)/computeflow $(DEMO_PLAN)
	@echo
	@echo '$$ computeflow audit $(DEMO_TRACE) --price 2.50 --html build/audit.html'
	@$(BIN)/computeflow audit $(DEMO_TRACE) --no-cache --price 2.50 --html build/audit.html --force
	@echo
	@echo 'The report: file://$(abspath build/audit.html)'

test: $(STAMP) lint  ## lint, types and the tests that start nothing big
	@echo "[test] pytest"
	@$(BIN)/python -m pytest -n 2 --dist loadfile -m 'not live'

# Most live tests wait, for steps, polls and timeouts: three of them have room on two cores. Files that
# take more than a minute begin first, those that wait beside those that compute; files without live
# tests are not read at all.
LONGEST := $(patsubst %,tests/test_%.py,online_live record_faults_live control_live record_safety_live \
	record_live ray logs_live fleet probe page_live control_faults_live exports_more collector_live)
LIVE = $(LONGEST) $(filter-out $(LONGEST),$(shell grep -l 'mark\.live' tests/test_*.py))
live: $(STAMP)  ## the tests with real servers, browsers, Ray and training
	@echo "[live] pytest"
	@$(BIN)/python -m pytest $(LIVE) -n 3 --dist loadfile --no-loadscope-reorder -m 'live and not long' -rs

lint: $(STAMP)
	@echo "[test] ruff, mypy"
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy --no-error-summary

system:  ## install the Debian packages that the live tests need
	@missing=$$(for p in $(SYSTEM_PACKAGES); do dpkg -s $$p >/dev/null 2>&1 || echo $$p; done); \
	if [ -n "$$missing" ]; then \
	  echo "[system] installing" $$missing; \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $$missing; \
	else echo "[system] nothing missing"; fi

proofs: $(STAMP)  ## the long comparisons and tests; writes benchmarks/reports
	@$(PIP) -e '.[long]' $(TORCH)
	@$(BIN)/python -m pytest -m long -rs
	@for proof in benchmarks/prove_*.py; do name=$$(basename $$proof .py); echo "[proofs] $$name"; $(BIN)/python -m benchmarks.$$name || exit 1; done

MINUTES ?= 60
fuzz: $(STAMP)  ## feed every reader what nobody wrote, for an hour (MINUTES=60); writes benchmarks/reports
	@$(PIP) -e '.[fuzz]'
	@$(BIN)/python -m benchmarks.fuzz_readers --minutes $(MINUTES)

docs: $(STAMP)  ## regenerate docs/cli.md, the map and the frozen names
	@$(BIN)/python docs/generate.py
	@$(BIN)/python tests/test_frozen.py

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
