# Every target creates .venv/ and installs what it needs; the second time it starts at once.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
STAMP := .venv/.installed
# Programs that the tests start need not be compiled each time, also where the environment says otherwise.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: setup demo test test-slow test-pythons test-engines test-flower bench bench-engines coverage storm fuzz docs lint format clean
.DEFAULT_GOAL := setup

setup: $(STAMP)

$(BIN)/python:
	$(PYTHON) -m venv .venv
	$(PIP) install --quiet --upgrade 'pip>=25.1'

# --group reads [dependency-groups] of pyproject.toml
$(STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install --quiet --constraint constraints.txt --editable '.[demo,arrow,figures,lightning,transformers,tensorboard,mlflow,wandb]' --group test --group lint --group docs
	touch $@

demo: setup
	$(BIN)/bayesdp demo

# A worker that has nothing left to do takes tests from the other, so both end together.
test: setup
	$(BIN)/python -m pytest -n 2 --dist worksteal

# Everything again with fresh random examples, ten times as many, and the tests marked slow.
test-slow: setup
	HYPOTHESIS_PROFILE=explore $(BIN)/python -m pytest -n 2 --dist worksteal -m 'slow or not slow'

# Rooms that need no PyTorch, on the newer Pythons that this machine has.
test-pythons:
	.ci/pythons

# Everything with JAX Privacy, in an environment of its own; writes results/engines.json.
ENGINES := .venv-engines
$(ENGINES)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(ENGINES)
	$(ENGINES)/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(ENGINES)/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[keras,opacus,report]' --group engines
	touch $@

test-engines: $(ENGINES)/.installed
	$(ENGINES)/bin/python -m benchmarks.engines

bench-engines: $(ENGINES)/.installed
	$(ENGINES)/bin/python -m benchmarks.jax_overhead

# Flower pins older versions of what other tools use, so it has an environment of its own.
.venv-flower/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-flower
	.venv-flower/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[flower,opacus]' 'flwr[simulation]' pytest pytest-xdist hypothesis
	touch $@

# Real SuperLink and SuperNode processes among them, and a simulation with Ray; some minutes. Writes
# results/engine_flower.json.
test-flower: .venv-flower/.installed
	.venv-flower/bin/python -m benchmarks.engines flower

bench: setup
	$(BIN)/python -m benchmarks.accountant_step
	$(BIN)/python -m benchmarks.ledger
	$(BIN)/python -m benchmarks.claims
	$(BIN)/python -m benchmarks.guarantees
	$(BIN)/python -m benchmarks.budgets
	$(BIN)/python -m benchmarks.opacus_overhead
	$(BIN)/python -m benchmarks.ranks_overhead
	$(BIN)/python -m benchmarks.parameters_scale
	$(BIN)/python -m benchmarks.audit_cost
	$(BIN)/python -m benchmarks.linear_probe
	$(BIN)/python -m benchmarks.report

# How often every estimator is below the truth, on hostile populations; a minute or two.
coverage: setup
	$(BIN)/python -m benchmarks.coverage

# 200 killed writers, 1,000 damaged files, and the faults of a machine under load; many minutes.
storm: setup
	$(BIN)/python -m benchmarks.ledger_storm
	$(BIN)/python -m benchmarks.faults_under_load
	$(BIN)/python -m benchmarks.ranks_storm

# Random calls of everything that is public; a million with --cases 1000000.
fuzz: setup
	$(BIN)/python -m benchmarks.fuzz --cases 20000

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv .venv-engines .venv-flower site demo
