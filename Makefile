# Every target sets up what it needs in .venv. Nothing is written outside this checkout but pip's own download cache.
# The first python3 that is new enough; PYTHON=/path/to/python names another one.
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

help: ## Show the targets
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

check: ## See whether this machine has what is needed
	@PYTHON="$(PYTHON)" scripts/check.sh

install: $(VENV)/.installed ## Make .venv with all programs in .venv/bin

# A .venv of another Python than the one that is named is made again; where none is named, .venv stays as it is.
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
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; name one: make PYTHON=/path/to/python3.12")'
	@$(if $(OTHER_PYTHON),echo "$(VENV) is of another Python than $(PYTHON): it is made again"; rm -rf $(VENV))
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "no virtual environment could be made: see 'make check'" >&2; exit 1; }
	@echo "installing into $(VENV) (about half a minute the first time)"
	@$(PIP) -e '.[dev]'
	@touch $@

# What only tests and checks need comes second, so that a first look does not wait for it.
tools: $(VENV)/.tools

$(VENV)/.tools: $(VENV)/.installed
	@echo "installing what tests and checks need"
	@$(PIP) -e '.[test]'
	@touch $@

dev: install ## Run a shard with a standby and three instances here, and see them heal
	@exec $(BIN)/python -m nstance.dev --ports $(PORTS) --config $(CONFIG) $(if $(filter-out 0,$(KEEP)),--keep)

dev-once: install ## The same, breaks and heals by itself, then ends; fails if an agent does not work
	@exec $(BIN)/python -m nstance.dev --ports auto --config $(CONFIG) --dir temp/dev-once --once

dev-tmux: install ## Run dev-s3 and the shards dev-1 and dev-2 with agents in tmux (STANDBYS=1: with standbys)
	@command -v tmux >/dev/null || { echo "tmux is missing: see 'make check'" >&2; exit 1; }
	@exec env STANDBYS=$(STANDBYS) $(BIN)/honcho start -c server=2 s3 server

dev-tmux-k8s: install ## The same with dev-k8s, a Kubernetes API over files, and the operator
	@command -v tmux >/dev/null || { echo "tmux is missing: see 'make check'" >&2; exit 1; }
	@exec env STANDBYS=$(STANDBYS) $(BIN)/honcho start -c server=2

dev-operator: install ## Run the operator here against temp/operator/kubeconfig, or KUBECONFIG=
	@exec $(BIN)/python -m nstance.dev.operator --only

clean-dev: ## End what these started, and remove temp/
	@if [ -e $(VENV)/.installed ]; then $(BIN)/python -m nstance.dev.clean; else rm -rf temp; fi

test: tools ## Run all tests
	$(BIN)/pytest -q -n 2 --dist loadfile --no-loadscope-reorder

test-pythons: install ## Run the smoke test and the agent's tests with the oldest and the newest Python here (PYTHONS=)
	@PYTHONS="$(PYTHONS)" scripts/test-pythons.sh

test-kube: tools ## Run the operator's tests against a real kube-apiserver and Cluster API (Go builds both, once)
	$(BIN)/python tests/support/real_kube.py $(BIN)/pytest -q -k "real or cluster_api" tests/contracts/test_kube_contract*.py tests/component/test_operator_*.py tests/e2e/test_operator_process.py

lint: tools proto-check manifests-check ## Check format, types, layers, and that generated code is up to date
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: tools ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

sim: tools ## Play 2,000 random schedules of whole shards on all cores (SEEDS=, START=)
	$(BIN)/python -m nstance.sim.main swarm --seeds $(SEEDS) --start $(START)

sim-long: tools ## The same with any number of seeds; goes on where it was interrupted (SEEDS=100000)
	@mkdir -p temp
	$(BIN)/python -m nstance.sim.main swarm --seeds $(SEEDS) --start $(START) --resume temp/sim-$(START).json

sim-exhaustive: tools ## Crash and pause at every named point, alone and in pairs, and bend every call
	$(BIN)/python -m nstance.sim.main exhaustive --pairs

mutants: tools ## Break the product on purpose in many ways, and see which test notices
	$(BIN)/python -m tests.sim.mutants

fuzz: tools ## Look for inputs that break something (SECONDS=, TARGET=; REPLAY=file); see docs/fuzzing.md
	@PYTHONPATH=tests $(BIN)/python -m fuzz --seconds $(SECONDS) $(if $(TARGET),--target $(TARGET)) $(if $(REPLAY),--replay $(REPLAY))

chaos: tools ## Break two real servers, their storage and 200 real agents for five minutes (AGENTS=, SECONDS=, SEED=)
	@exec $(BIN)/python -m chaos --agents $(AGENTS) --seconds $(SECONDS) --seed $(SEED)

failovers: tools ## Compare real fail-overs with the simulator's
	@exec $(BIN)/python -m chaos failovers

soak: tools ## Make and end VMS= VMs (an hour of churn) and see that the leader's memory stays flat
	$(BIN)/python -m bench.soak $(VMS)

bench: tools ## Measure; the table goes to docs/benchmarks.md
	$(BIN)/python -m bench

proto: tools ## Generate src/nstance/v1 from proto/
	@BIN=$(BIN) scripts/generate-proto.sh src

proto-check: tools
	@BIN=$(BIN) scripts/generate-proto.sh --check src

manifests: tools ## Generate the CRDs in config/crd and what the Helm chart shares with config/
	$(BIN)/python scripts/manifests.py

manifests-check: tools
	@$(BIN)/python scripts/manifests.py --check

schema: install ## Generate docs/config.schema.json
	$(BIN)/python -m nstance.config.schema > docs/config.schema.json.new && mv docs/config.schema.json.new docs/config.schema.json

agent-pyz: tools ## Make dist/nstance-agent.pyz
	@PYTHON=$(BIN)/python scripts/build-agent-pyz.sh

$(PROGRAMS): install ## Make bin/<program>
	@mkdir -p bin
	@printf '#!/bin/sh\nexec "%s/%s" "$$@"\n' "$(CURDIR)/$(BIN)" $@ > bin/$@
	@chmod +x bin/$@

clean: clean-dev ## Also remove .venv and everything that was built
	rm -rf $(VENV) bin build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis src/*.egg-info
