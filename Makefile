# Every target installs what it needs into .venv. Only pip's download cache is outside this checkout.
# The first python3 that is new enough; choose another one with PYTHON=/path/to/python.
PYTHON ?= $(or $(firstword $(foreach p,python3 python3.14 python3.13 python3.12 python3.11,$(shell $(p) -c 'import sys; sys.version_info >= (3, 11) and print("$(p)")' 2>/dev/null))),python3)
VENV := .venv
BIN := $(VENV)/bin
PROGRAMS := nstance-server nstance-agent nstance-operator nstance-admin nstance-dev-s3 nstance-dev-k8s
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# For `make dev` and `make dev-tmux`:
PORTS ?= 8990
CONFIG ?= examples/config-dev.jsonc
KEEP ?= 0
STANDBYS ?= 0

# For `make chaos`, `make fuzz`:
AGENTS ?= 200
SECONDS ?= 300
SEED ?= 1

# For `make soak`:
VMS ?= 2160

# For `make sim` and `make sim-long`:
SEEDS ?= 2000
START ?= 0

.PHONY: help check install tools dev dev-once dev-tmux dev-tmux-k8s dev-operator clean-dev test test-pythons test-kube lint format bench soak sim sim-long sim-exhaustive mutants fuzz chaos failovers proto proto-check manifests manifests-check schema agent-pyz clean $(PROGRAMS)

help: ## Show this list
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

check: ## Check that this machine has the required programs
	@PYTHON="$(PYTHON)" scripts/check.sh

install: $(VENV)/.installed ## Create .venv with all programs in .venv/bin

# A .venv of another Python is created again if PYTHON is set; otherwise it stays as it is.
OF := -c 'import sys; print(sys.version, sys.base_prefix)'
ifneq ($(origin PYTHON),file)
ifneq ($(wildcard $(BIN)/python),)
ifneq ($(shell $(BIN)/python $(OF) 2>&1),$(shell $(PYTHON) $(OF) 2>&1))
OTHER_PYTHON := yes
.PHONY: $(VENV)/.installed
endif
endif
endif

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; choose one: make PYTHON=/path/to/python3.12")'
	@$(if $(OTHER_PYTHON),echo "$(VENV) is of another Python than $(PYTHON): creating it again"; rm -rf $(VENV))
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "failed to create a virtual environment: run 'make check'" >&2; exit 1; }
	@echo "installing into $(VENV) (about half a minute the first time)"
	@$(PIP) -e '.[dev]'
	@touch $@

# Test tools are installed separately, so that `make dev` does not wait for them.
tools: $(VENV)/.tools

$(VENV)/.tools: $(VENV)/.installed
	@echo "installing test tools"
	@$(PIP) -e '.[test]'
	@touch $@

dev: install ## Run a shard with a standby and three instances on this machine
	@exec $(BIN)/python -m nstance.dev --ports $(PORTS) --config $(CONFIG) $(if $(filter-out 0,$(KEEP)),--keep)

dev-once: install ## Smoke test: start them, crash an agent and the leader, check the recovery
	@exec $(BIN)/python -m nstance.dev --ports auto --config $(CONFIG) --dir temp/dev-once --once

dev-tmux: install ## Run dev-s3 and two shards with agents in tmux (STANDBYS=1: with standbys)
	@command -v tmux >/dev/null || { echo "tmux is missing: see 'make check'" >&2; exit 1; }
	@exec env STANDBYS=$(STANDBYS) $(BIN)/honcho start -c server=2 s3 server

dev-tmux-k8s: install ## The same with dev-k8s, a Kubernetes API over files, and the operator
	@command -v tmux >/dev/null || { echo "tmux is missing: see 'make check'" >&2; exit 1; }
	@exec env STANDBYS=$(STANDBYS) $(BIN)/honcho start -c server=2

dev-operator: install ## Run the operator against temp/operator/kubeconfig, or KUBECONFIG=
	@exec $(BIN)/python -m nstance.dev.operator --only

clean-dev: ## Stop all processes of the dev targets and remove temp/
	@if [ -e $(VENV)/.installed ]; then $(BIN)/python -m nstance.dev.clean; else rm -rf temp; fi

test: tools ## Run all tests
	$(BIN)/pytest -q -n 2 --dist loadfile --no-loadscope-reorder

test-pythons: install ## Run the smoke test and the agent tests with the oldest and newest Python (PYTHONS=)
	@PYTHONS="$(PYTHONS)" scripts/test-pythons.sh

test-kube: tools ## Run the operator tests against a real kube-apiserver and Cluster API (needs Go)
	$(BIN)/python tests/support/real_kube.py $(BIN)/pytest -q -k "real or cluster_api" tests/contracts/test_kube_contract*.py tests/component/test_operator_*.py tests/e2e/test_operator_process.py

lint: tools proto-check manifests-check ## Check format, types, layers and generated code
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python scripts/check_language.py

format: tools ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

sim: tools ## Simulate 2,000 random schedules of shards on all cores (SEEDS=, START=)
	$(BIN)/python -m nstance.sim.main swarm --seeds $(SEEDS) --start $(START)

sim-long: tools ## The same with many seeds; continues after an interruption (SEEDS=100000)
	@mkdir -p temp
	$(BIN)/python -m nstance.sim.main swarm --seeds $(SEEDS) --start $(START) --resume temp/sim-$(START).json

sim-exhaustive: tools ## Crash and pause at every crash point and pair of them, and fail every call
	$(BIN)/python -m nstance.sim.main exhaustive --pairs

mutants: tools ## Check that the tests find every planted defect
	$(BIN)/python -m tests.sim.mutants

fuzz: tools ## Fuzz the parsers and protocols (SECONDS=, TARGET=, REPLAY=file); see docs/fuzzing.md
	@PYTHONPATH=tests $(BIN)/python -m fuzz --seconds $(SECONDS) $(if $(TARGET),--target $(TARGET)) $(if $(REPLAY),--replay $(REPLAY))

chaos: tools ## Inject faults into real servers, storage and 200 agents (AGENTS=, SECONDS=, SEED=)
	@exec $(BIN)/python -m chaos --agents $(AGENTS) --seconds $(SECONDS) --seed $(SEED)

failovers: tools ## Compare real failovers with simulated ones
	@exec $(BIN)/python -m chaos failovers

soak: tools ## Check that the leader's memory stays flat over VMS= VMs (about an hour)
	$(BIN)/python -m bench.soak $(VMS)

bench: tools ## Run the benchmarks and update docs/benchmarks.md
	$(BIN)/python -m bench

proto: tools ## Generate src/nstance/v1 from proto/
	@BIN=$(BIN) scripts/generate-proto.sh src

proto-check: tools
	@BIN=$(BIN) scripts/generate-proto.sh --check src

manifests: tools ## Generate the CRDs in config/crd and the shared files of the Helm chart
	$(BIN)/python scripts/manifests.py

manifests-check: tools
	@$(BIN)/python scripts/manifests.py --check

schema: install ## Generate docs/config.schema.json
	$(BIN)/python -m nstance.config.schema > docs/config.schema.json.new && mv docs/config.schema.json.new docs/config.schema.json

agent-pyz: tools ## Build dist/nstance-agent.pyz
	@PYTHON=$(BIN)/python scripts/build-agent-pyz.sh

$(PROGRAMS): install ## Create bin/<program>
	@mkdir -p bin
	@printf '#!/bin/sh\nexec "%s/%s" "$$@"\n' "$(CURDIR)/$(BIN)" $@ > bin/$@
	@chmod +x bin/$@

clean: clean-dev ## Also remove .venv and all build results
	rm -rf $(VENV) bin build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis src/*.egg-info
