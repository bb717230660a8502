# The targets are exactly what CI runs. `make demo` and `make test` set up all they need in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# SYSTEM=1 installs the Debian packages that some tests need (ssh hosts, Slurm, Docker), compiles Kubernetes
# once (some ten minutes), and has a second Ray in an environment of its own; without them those tests are skipped, with the reason.
SYSTEM ?=
# How many processes run tests at once: many of them wait for something most of the time.
JOBS ?= $(shell expr $$(nproc) + 2)
# Tests start thousands of Python processes: without bytecode each compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test lint types unit test-odd system bench bench-hosts bench-apps bench-elastic bench-scale bench-slurm bench-calls bench-docker bench-kubernetes bench-ray bench-all bench-compare chaos docs pictures peers lock clean

demo: $(VENV)/ready
	@$(BIN)/python examples/demo.py

test: lint types unit

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/ready
	$(BIN)/mypy

unit: $(VENV)/ready $(if $(SYSTEM),system)
	@# What fails beside others is tried once more, alone: the machine may have been too busy for it.
	$(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile \
		|| $(BIN)/python -m pytest -q --last-failed --last-failed-no-failures none

# Tests beside a busy loop on every core, as an ordinary user, in the background of a shell, from an empty environment: all of
# these, or WAYS; of the tests that this may change, or TESTS.
TESTS ?=
test-odd: $(VENV)/ready
	sh tools/test-odd $(BIN)/python $(TESTS)

system: $(VENV)/ready
	sh tools/install-system
	$(BIN)/python -m tests.cluster.kubernetes_build
	$(BIN)/python -m tests.cluster.ray

docs: $(VENV)/ready
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "read it: open site/index.html, or with search: $(BIN)/python -m http.server -d site"

# The terminals that README and docs/ show, from real commands.
pictures: $(VENV)/ready
	$(BIN)/python tools/make_pictures.py

# Other launchers' own tests, from their checkouts (PEERS_TORCHX=DIR, or cloned); docs/peers.md.
peers: $(VENV)/ready
	$(BIN)/python tools/peers.py --write

bench: $(VENV)/ready
	$(BIN)/python bench/run.py

bench-hosts: $(VENV)/ready
	$(BIN)/python bench/hosts.py

bench-apps: $(VENV)/ready
	$(BIN)/python bench/apps.py

bench-elastic: $(VENV)/ready
	$(BIN)/python bench/elastic.py

bench-scale: $(VENV)/ready
	$(BIN)/python bench/scale.py

bench-slurm: $(VENV)/ready
	$(BIN)/python bench/slurm.py

bench-calls: $(VENV)/ready
	$(BIN)/python bench/calls.py

bench-docker: $(VENV)/ready
	$(BIN)/python bench/docker.py

bench-kubernetes: $(VENV)/ready
	$(BIN)/python bench/kubernetes.py

bench-ray: $(VENV)/ready
	$(BIN)/python bench/ray_train.py

# All of them, kept under the commit; and two such runs side by side (A=COMMIT B=COMMIT).
bench-all: $(VENV)/ready
	$(BIN)/python bench/all.py

bench-compare: $(VENV)/ready
	$(BIN)/python bench/compare.py $(A) $(B)

# A training on hosts that break again and again, and must end with the right sum; MINUTES for each of WITH.
MINUTES ?= 20
SEED ?=
WITH ?= launcher etcd
chaos: $(VENV)/ready $(if $(SYSTEM),system)
	for way in $(WITH); do \
		$(BIN)/python -m tests.ssh.chaos --with $$way --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) || exit; \
	done

# The environment is made anew only when what it is made from changes.
$(VENV)/ready: requirements.lock pyproject.toml tools/make-venv
	@PYTHON="$(PYTHON)" sh tools/make-venv $(VENV)
	@touch $@

lock: $(VENV)/ready
	$(BIN)/pip freeze --all --exclude-editable | grep -v '^phalanx\|^pip==' | sed 's/+cpu$$//' > requirements.lock

clean:
	rm -rf $(VENV) site .venv-peers .venv-submitit .venv-torchx .venv-ray .pytest_cache .mypy_cache .ruff_cache .hypothesis
