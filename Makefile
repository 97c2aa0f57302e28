# Every target sets up .venv by itself: once, and again when pyproject.toml changes.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test lint bench warm clean

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[mpich,dev]'
	touch $@

warm: $(READY)
	$(BIN)/collemu warm

demo: $(READY)
	$(BIN)/collemu demo

test: warm
	$(BIN)/python -m pytest

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

bench: warm
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) demo-output
