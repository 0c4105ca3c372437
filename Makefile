# Each target does its own set-up (.venv, versions of constraints.txt); Python 3.11 or newer is all that must be there.
BIN := $(or $(PACELINE_VENV),.venv)/bin

.PHONY: help setup demo test test-full test-record soak check docs conformance moves families gpu-check clean

help:
	@echo "make demo    train a small model on two processes and see what it learnt (under 3 minutes after the installation)"
	@echo "make test    format, lint, types and the test suite: what CI runs"
	@echo "make test-full     the sweeps too: before a release"
	@echo "make soak          everything: the soaks and other programs in environments of their own too (hours)"
	@echo "make test-record   the suite, and tests/seconds.json anew (on a quiet machine)"
	@echo "make check   format, lint and types only"
	@echo "make setup   the virtual environment only"
	@echo "make docs    the documentation as a site in English and Chinese, outputs/site/index.html; any warning is an error"
	@echo "make families       what holds of every family of models, one small model of each (an hour on 2 cores)"
	@echo "make conformance    the support matrix: every strategy through the whole program (an hour on 2 cores)"
	@echo "make moves          every layout's checkpoint resumed in every other (two hours on 2 cores; PART=pairs for one part)"
	@echo "make gpu-check      training on this machine's GPU against the CPU's losses (two processes where there are two)"
	@echo "make clean   removes .venv, caches and outputs/demo"

setup:
	@scripts/setup

demo: setup
	@$(BIN)/python -m paceline.cli.main demo

test:
	@.ci/run

test-full: setup
	@scripts/test --full

soak: setup
	@scripts/test --slow

test-record: setup
	@scripts/test --full --record-seconds

check: setup
	@scripts/check

docs:
	@scripts/docs

clean:
	@rm -rf .venv .venv-docs .mypy_cache .ruff_cache .pytest_cache outputs/demo *.egg-info

# Every strategy × what is trained × precision, through the whole program; writes docs/reference/support.json and docs/reference/support.md.
conformance: setup
	@OMP_NUM_THREADS=1 $(BIN)/python tests/conformance

# A run begun in one layout goes on in another, every pair; writes docs/reference/moves.json and docs/reference/moves.md.
moves: setup
	@OMP_NUM_THREADS=1 $(BIN)/python tests/conformance/moves_main.py $(PART)

# Every causal family of Transformers in small; writes docs/reference/family-matrix.json and docs/reference/family-matrix.md.
families: setup
	@PYTHONPATH=.:tests OMP_NUM_THREADS=1 $(BIN)/python tests/unit/models/family_matrix.py $(ONLY)
	@PYTHONPATH=.:tests OMP_NUM_THREADS=1 $(BIN)/python tests/unit/models/family_matrix.py --ranks $(ONLY)
	@PYTHONPATH=.:tests OMP_NUM_THREADS=1 $(BIN)/python tests/unit/models/family_matrix.py --towers

# Training on the GPUs of this machine, held to the CPU's losses; writes docs/reference/gpu_support.md.
gpu-check: setup
	@$(BIN)/python tests/gpu
