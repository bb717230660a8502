# The targets are exactly what CI runs. `make demo` and `make test` set up all they need in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# SYSTEM=1 allows the tests to install Debian packages and start servers; none of them needs it yet.
SYSTEM ?=

.PHONY: demo test lint types unit bench reference lock clean

demo: $(VENV)/ready
	@$(BIN)/python examples/demo.py

test: lint types unit

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/ready
	$(BIN)/mypy

unit: $(VENV)/ready
	$(BIN)/python -m pytest -q

reference: $(VENV)/ready
	$(BIN)/python tools/make_reference.py

bench: $(VENV)/ready
	$(BIN)/python bench/run.py

# The environment is made anew only when what it is made from changes.
$(VENV)/ready: requirements.lock pyproject.toml tools/make-venv
	@PYTHON="$(PYTHON)" sh tools/make-venv $(VENV)
	@touch $@

lock: $(VENV)/ready
	$(BIN)/pip freeze --exclude-editable | grep -v '^phalanx' | sed 's/+cpu$$//' > requirements.lock

clean:
	rm -rf $(VENV) .venv-peers .pytest_cache .mypy_cache .ruff_cache .hypothesis
