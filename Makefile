# `make repro` and `make test` each work as the first command on a machine with make and python3.11 or newer.
PYTHON ?= python3
VENV := .venv
MERGEKIT := .venv-mergekit
STAMP := $(VENV)/.installed
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export HF_HUB_DISABLE_TELEMETRY := 1
export TOKENIZERS_PARALLELISM := false

.PHONY: help setup repro check unit test bench compare clean

help:
	@echo "make repro   set up, then run the whole pipeline of dvc.yaml (dvc repro)"
	@echo "make test    set up, then ruff, mypy and every test"
	@echo "make check   ruff and mypy only"
	@echo "make unit    the tests that need no real model"
	@echo "make bench   time and memory of every step against the alternatives (PARTS=\"speed size\" for some)"
	@echo "make compare race the methods of params.yaml's compare over seeds: one table, one figure"
	@echo "make clean   remove the virtual environment"

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "lesa needs python 3.11 or newer, this is " + sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)
	python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

repro: setup
	python stages/check.py
	dvc repro
	@echo "The report is in reports/report.html"

check: setup
	ruff check .
	ruff format --check .
	mypy

unit: setup
	pytest -m "not real"

test: check
	pytest

# mergekit's own bounds on versions are to keep no one else's back.
$(MERGEKIT)/.installed: constraints.txt
	$(PYTHON) -m venv $(MERGEKIT)
	$(MERGEKIT)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt mergekit==0.1.5
	touch $@

bench: setup $(MERGEKIT)/.installed
	python bench/run.py reports/bench $(MERGEKIT)/bin/mergekit-yaml $(PARTS)
	@echo "The figures are in reports/bench/benchmark.md"

compare: setup
	python stages/compare.py reports/compare

clean:
	rm -rf $(VENV) $(MERGEKIT)
