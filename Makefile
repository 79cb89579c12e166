# `make demo` and `make test` do their own set-up: a virtual environment in .venv with everything they need.
#
#   make test PYTHON=python3.12        another interpreter (3.11 or newer)
#   make test TORCH="torch==2.9.1"     another torch build; by default the CPU release we test with,
#                                      or the current CUDA build when nvidia-smi is found
#   make test ARGS="tests/attest -x"   arguments for pytest

PYTHON ?= python3
VENV   ?= .venv
EXTRAS ?= train,minilm,dev
TORCH  ?= $(if $(shell command -v nvidia-smi 2>/dev/null),torch,torch==2.13.0)
ARGS   ?=
DIR    ?= demo

BIN   := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help install demo test slow lint types bench bench-gate clean

help:
	@echo "make demo    the whole way on real data, from keys to a verified export, into $(DIR)/"
	@echo "make test    the test suite (make slow: the long tests)"
	@echo "make lint    ruff; make types: mypy; make bench: benchmarks; make clean: remove what make made"

install: $(STAMP)

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "dptrain needs Python 3.11 or newer; say which: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(TORCH)
	$(BIN)/python -m pip install --quiet --editable '.[$(EXTRAS)]'
	@touch $(STAMP)

demo: $(STAMP)
	$(BIN)/dptrain demo --dir $(DIR)

# One BLAS thread per test worker: the default of one pool per core in every worker is slower.
test: $(STAMP)
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -q -n auto $(ARGS)

slow: $(STAMP)
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -q -m slow $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .

types: $(STAMP)
	$(BIN)/mypy

bench: $(STAMP)
	$(BIN)/python -m benchmarks $(ARGS)

# The gate beside bare signature checks, and signing beside bare signatures; benchmarks must have the machine to themselves.
bench-gate: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.gate $(ARGS)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.signing

# Keeps demo/: it holds keys and a ledger, which only their owner may throw away.
clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find attest ledger dptrain recipes tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
