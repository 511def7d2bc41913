# `make repro` and `make test` each work as the first command on a machine with make and python3.11 or newer.
PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/.installed
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export HF_HUB_DISABLE_TELEMETRY := 1
export TOKENIZERS_PARALLELISM := false

.PHONY: help setup repro check unit test clean

help:
	@echo "make repro   set up, then run the whole pipeline of dvc.yaml (dvc repro)"
	@echo "make test    set up, then ruff, mypy and every test"
	@echo "make check   ruff and mypy only"
	@echo "make unit    the tests that need no real model"
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

clean:
	rm -rf $(VENV)
