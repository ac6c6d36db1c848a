# On a bare machine with Python and make:
#   make reproduce   sets everything up and reproduces every figure (quick presets), with a report to open
#   make test        sets everything up and passes the tests
# Each set-up is a stamp file: a second call installs nothing.

PYTHON ?= python3
PRESET ?= quick
OUT ?= results
WORKERS ?= $(shell nproc 2>/dev/null || echo 2)
BIN := .venv/bin

.PHONY: help reproduce test test-slow test-all lint format bench docs clean

help:
	@sed -n '2,3s/^#   //p' Makefile
	@echo "also: test-slow, test-all, lint, format, bench, docs, clean"

.venv/.made:
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	@touch $@

.venv/.core: .venv/.made pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[cluster]'
	@touch $@

.venv/.dev: .venv/.made pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@ .venv/.core

.venv/.docs: .venv/.dev
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	@touch $@

reproduce: .venv/.core
	$(BIN)/nullcline reproduce --preset $(PRESET) --out $(OUT) --workers $(WORKERS)

test: .venv/.dev
	$(BIN)/python -m pytest -n 2 -m "not slow"

test-slow: .venv/.dev
	$(BIN)/python -m pytest -n 2 -m slow

# One run of both: started once, and nothing is compiled twice.
test-all: .venv/.dev
	$(BIN)/python -m pytest -n 2

lint: .venv/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

format: .venv/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: .venv/.dev
	for script in benchmarks/bench_*.py; do $(BIN)/python $$script || exit 1; done

docs: .venv/.docs
	$(BIN)/sphinx-build -W -b html docs docs/_build/html

clean:
	rm -rf .venv docs/_build .pytest_cache .hypothesis .ruff_cache
