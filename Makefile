# Each target does its own set-up (.venv, versions of constraints.txt); Python 3.11 or newer is all that must be there.
BIN := $(or $(PACELINE_VENV),.venv)/bin

.PHONY: help setup demo test check clean

help:
	@echo "make demo    train a small model on two processes and see what it learnt (under 3 minutes after the installation)"
	@echo "make test    format, lint, types and the test suite: what CI runs"
	@echo "make check   format, lint and types only"
	@echo "make setup   the virtual environment only"
	@echo "make clean   removes .venv, caches and outputs/demo"

setup:
	@scripts/setup

demo: setup
	@$(BIN)/python -m paceline.cli.main demo

test:
	@.ci/run

check: setup
	@scripts/check

clean:
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache outputs/demo *.egg-info
