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

# For `make vm-image`, `make dev-vm` and `make test-vm`: where the guest is built
VM_IMAGES ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/nstance/vm

# For `make test-proxmox`: where the stand-in is installed
FAKEPVE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/nstance/fakepve

# For `make dev-aws`: the architecture of this machine
ARCH := $(if $(filter aarch64 arm64,$(shell uname -m)),arm64,amd64)

# For `make chaos`, `make fuzz`:
AGENTS ?= 200
SECONDS ?= 300
SEED ?= 1

# For `make soak`:
VMS ?= 2160

# moto stands in for AWS. It is not a part of .venv: it brings a hundred packages, and nothing imports it.
MOTO ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/nstance/moto
MOTO_VERSION := 5.2.5

# For `make sim`, `make sim-long` and the schedules of faults on stand-ins:
SEEDS ?= 2000
START ?= 0

# Where .pyc files are forbidden, each of the hundreds of processes that the tests start compiles everything again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help check install tools dev dev-once dev-tmux dev-tmux-k8s dev-operator clean-dev test test-pythons test-stores moto test-aws aws-schedules gcp-fields gcp-schedules on-prem-schedules test-kube kube-chaos lint format bench soak soak-ui sim sim-long sim-exhaustive mutants fuzz chaos failovers proto proto-check manifests manifests-check aws-fields schema agent-pyz agent-bundle server-bundle test-agent-roots dev-vm vm-image test-vm test-ui test-proxmox test-hybrid dev-aws test-dev-aws test-terraform clusterctl test-charts clean $(PROGRAMS)

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

dev-aws: install $(MOTO)/.$(MOTO_VERSION) ## Run a stand-in for AWS whose instances boot in sandboxes, and a server (CONFIG=, SPOT=storm, CAPACITY=type:n)
	@test -e dist/nstance-agent-linux-$(ARCH).tar.gz || $(BIN)/python scripts/build_bundle.py agent --arch $(ARCH)
	@NSTANCE_MOTO=$(or $(NSTANCE_MOTO),$(MOTO)/bin/moto_server) exec $(BIN)/python -m nstance.dev.aws.box --config $(if $(filter file,$(origin CONFIG)),examples/config-aws.jsonc,$(CONFIG)) $(if $(SPOT),--spot $(SPOT)) $(CAPACITY:%=--capacity %)

dev-tmux: install ## Run dev-s3 and two shards with agents in tmux (STANDBYS=1: with standbys)
	@command -v tmux >/dev/null || { echo "tmux is missing: see 'make check'" >&2; exit 1; }
	@exec env STANDBYS=$(STANDBYS) $(BIN)/honcho start -c server=2 s3 server

dev-tmux-k8s: install ## The same with dev-k8s, a Kubernetes API over files, and the operator
	@command -v tmux >/dev/null || { echo "tmux is missing: see 'make check'" >&2; exit 1; }
	@exec env STANDBYS=$(STANDBYS) $(BIN)/honcho start -c server=2

dev-operator: install ## Run the operator against temp/operator/kubeconfig, or KUBECONFIG=
	@exec $(BIN)/python -m nstance.dev.operator --only

vm-image: install ## Build a minimal Debian guest with the agent for the provider qemu (VM_IMAGES=)
	@DIR="$(VM_IMAGES)" PYTHON=$(BIN)/python scripts/build-vm-image.sh

$(VM_IMAGES)/state/machine.json:
	@$(MAKE) --no-print-directory vm-image

dev-vm: install $(VM_IMAGES)/state/machine.json ## Run a shard whose instances are real VMs (QEMU), and break them
	@exec $(BIN)/python -m nstance.dev --ports $(PORTS) --config examples/config-vm.jsonc --dir temp/dev-vm --vm-images "$(VM_IMAGES)" $(if $(filter-out 0,$(KEEP)),--keep)

clean-dev: ## Stop all processes of the dev targets and remove temp/
	@if [ -e $(VENV)/.installed ]; then $(BIN)/python -m nstance.dev.clean; else rm -rf temp; fi

# Most of a test is waiting: four processes keep two cores busy.
test: tools ## Run all tests
	$(BIN)/pytest -q -n 4 --dist loadfile --no-loadscope-reorder

test-vm: tools vm-image ## Run the tests with real VMs: 300 schedules of crashes, and every way to lose a VM
	NSTANCE_QEMU_SCHEDULES=300 NSTANCE_FIRST_SEED=$(START) $(BIN)/pytest -q tests/component/test_provider_qemu.py
	NSTANCE_VM_IMAGES="$(VM_IMAGES)" $(BIN)/pytest -q -rs -s tests/e2e/test_dev_vm.py

# The stand-in is a program of its own: its license differs from ours, so it is neither imported nor shipped.
$(FAKEPVE)/bin/fakepve:
	@echo "installing fakepve into $(FAKEPVE)"
	@$(PYTHON) -m venv $(FAKEPVE)
	@$(FAKEPVE)/bin/pip install --quiet --disable-pip-version-check fakepve==0.5.0

test-proxmox: tools $(FAKEPVE)/bin/fakepve ## Run the tests of the provider proxmox against a stand-in of its API
	NSTANCE_FAKEPVE=$(FAKEPVE)/bin/fakepve NSTANCE_PROXMOX_SCHEDULES=300 NSTANCE_FIRST_SEED=$(START) $(BIN)/pytest -q -k proxmox tests/contracts/test_provider_contract.py tests/component/test_provider_proxmox.py tests/component/test_deploy_proxmox.py

test-hybrid: tools $(FAKEPVE)/bin/fakepve $(MOTO)/.$(MOTO_VERSION) ## Run one cluster with shards on all providers whose stand-ins can be installed
	NSTANCE_FAKEPVE=$(FAKEPVE)/bin/fakepve NSTANCE_MOTO=$(or $(NSTANCE_MOTO),$(MOTO)/bin/moto_server) $(BIN)/pytest -q -s -n 0 tests/component/test_hybrid.py tests/e2e/test_hybrid_processes.py

test-pythons: install ## Run the smoke test and the agent tests with the oldest and newest Python (PYTHONS=)
	@PYTHONS="$(PYTHONS)" scripts/test-pythons.sh

moto: $(MOTO)/.$(MOTO_VERSION) ## Install moto, the stand-in for AWS in tests, into MOTO= (in the cache directory)

$(MOTO)/.$(MOTO_VERSION):
	@echo "installing moto $(MOTO_VERSION) into $(MOTO) (about two minutes)"
	@$(PYTHON) -m venv $(MOTO)
	@$(MOTO)/bin/pip install --quiet --disable-pip-version-check 'moto[server]==$(MOTO_VERSION)'
	@touch $@

test-aws: tools ## Run the AWS tests against moto (run 'make moto' before; NSTANCE_AWS_TEST_SUBNET=: also in an account)
	@$(if $(NSTANCE_AWS_TEST_SUBNET),echo "test-aws: creates one t4g.nano in $(NSTANCE_AWS_TEST_SUBNET) with your credentials; that costs less than a cent")
	NSTANCE_TEST_AWS=1 NSTANCE_AWS_TEST_SUBNET=$(NSTANCE_AWS_TEST_SUBNET) NSTANCE_MOTO=$(or $(NSTANCE_MOTO),$(MOTO)/bin/moto_server) $(BIN)/pytest -q -k aws tests/contracts/test_provider_contract.py tests/contracts/test_secret_store.py tests/component/aws tests/unit/aws

test-ui: tools ## Drive the dashboard in Chromium (needs chromium; SCREENSHOTS=docs/images takes its pictures again, LOOKING=600 looks longer)
	@$(PIP) -e '.[ui]'
	NSTANCE_TEST_UI=1 NSTANCE_UI_SCREENSHOTS="$(SCREENSHOTS)" NSTANCE_UI_SECONDS="$(LOOKING)" $(BIN)/pytest -q -rs tests/ui

aws-schedules: tools ## Run random schedules of faults on AWS by moto (COUNT=500 INSTANCES=40 START=)
	NSTANCE_MOTO=$(or $(NSTANCE_MOTO),$(MOTO)/bin/moto_server) PYTHONPATH=tests $(BIN)/python -m component.aws.schedules --first $(START) --count $(or $(COUNT),500) --size $(or $(INSTANCES),40)

test-kube: tools ## Run the operator tests against a real kube-apiserver and Cluster API (needs Go)
	$(BIN)/python tests/support/real_kube.py $(BIN)/pytest -q -k "real or cluster_api or operator_process" tests/contracts/test_kube_contract*.py tests/component/test_operator_*.py tests/component/packaging tests/e2e/test_operator_process.py

kube-chaos: tools ## Kill operators, API server, etcd and shard leaders at a real kube-apiserver (KILLS=100 SEED=; needs Go)
	PYTHONPATH=tests $(BIN)/python -m component.kube_chaos --kills $(or $(KILLS),100) --seed $(SEED)

test-stores: tools ## Run the storage contract against MinIO, Versity's gateway and servers to refuse (needs Go)
	$(BIN)/python tests/support/real_stores.py $(BIN)/pytest -q -rs tests/contracts/test_object_store.py tests/contracts/test_object_store_faults.py

lint: tools proto-check manifests-check ## Check format, types, layers and generated code
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python scripts/check_language.py

format: tools ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

sim: tools ## Simulate 2,000 random schedules of shards on all cores, as many of one group, 160 elections (SEEDS=, START=)
	$(BIN)/python -m nstance.sim.main swarm --seeds $(SEEDS) --start $(START)
	NSTANCE_WALKS=$(SEEDS) NSTANCE_ELECTIONS=$(shell expr $(SEEDS) / 50 + 1) NSTANCE_WALK_SEED=$(START) $(BIN)/pytest -q tests/sim/test_group_walks.py tests/sim/test_leadership.py

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

soak-ui: tools ## Look at 5,000 instances in Chromium for SECONDS=600 while 50 events a second happen
	@$(PIP) -e '.[ui]'
	$(BIN)/python -m bench.looking $(if $(filter file,$(origin SECONDS)),,$(SECONDS))

bench: tools ## Run the benchmarks and update docs/benchmarks.md
	$(BIN)/python -m bench

proto: tools ## Generate src/nstance/v1 from proto/
	@BIN=$(BIN) scripts/generate-proto.sh src

proto-check: tools
	@BIN=$(BIN) scripts/generate-proto.sh --check src

manifests: tools ## Generate the CRDs in config/crd, shared files of the Helm chart, tables of the Terraform modules
	$(BIN)/python scripts/manifests.py
	$(BIN)/python scripts/terraform_docs.py

manifests-check: tools
	@$(BIN)/python scripts/manifests.py --check
	@$(BIN)/python scripts/terraform_docs.py --check

gcp-schedules: tools ## Run random schedules of faults on a stand-in for Google Cloud (COUNT=300 START=0 INSTANCES=20)
	PYTHONPATH=tests $(BIN)/python -m component.gcp.schedules --count $(or $(COUNT),300) --first $(START) --size $(or $(INSTANCES),20)

on-prem-schedules: tools $(FAKEPVE)/bin/fakepve ## The same on Proxmox or QEMU (PROVIDER=proxmox COUNT=300 START=0 INSTANCES=4)
	NSTANCE_FAKEPVE=$(FAKEPVE)/bin/fakepve PYTHONPATH=tests $(BIN)/python -m component.on_prem.schedules $(or $(PROVIDER),proxmox) --count $(or $(COUNT),300) --first $(START) --size $(or $(INSTANCES),4)

gcp-fields: tools ## Generate src/nstance/gcp/instance_fields.json from Google's description of its API
	$(BIN)/python scripts/gcp_fields.py

aws-fields: tools ## Generate src/nstance/aws/run_instances.json from the SDK's model of EC2
	$(BIN)/python scripts/aws_fields.py

schema: install ## Generate docs/config.schema.json
	$(BIN)/python -m nstance.config.schema > docs/config.schema.json.new && mv docs/config.schema.json.new docs/config.schema.json

agent-pyz: tools ## Build dist/nstance-agent.pyz
	@PYTHON=$(BIN)/python scripts/build-agent-pyz.sh

agent-bundle: install ## Build dist/nstance-agent-linux-{amd64,arm64}.tar.gz, which need no Python (needs Go)
	@$(BIN)/python scripts/build_bundle.py agent

server-bundle: install ## The same for the server
	@$(BIN)/python scripts/build_bundle.py server

test-agent-roots: tools agent-bundle ## Run the bundle and the userdata script in clean Debian roots (needs root, mmdebstrap)
	@PYTHON=$(BIN)/python scripts/test-agent-roots.sh

test-dev-aws: tools agent-bundle $(MOTO)/.$(MOTO_VERSION) ## Boot instances of the AWS examples in sandboxes (needs bwrap)
	@NSTANCE_TEST_DEV_AWS=1 NSTANCE_MOTO=$(or $(NSTANCE_MOTO),$(MOTO)/bin/moto_server) $(BIN)/pytest -q -rs tests/e2e/test_dev_aws.py

test-terraform: tools agent-bundle server-bundle $(MOTO)/.$(MOTO_VERSION) ## Test the Terraform modules against a stand-in for AWS (needs Terraform, bwrap)
	@NSTANCE_MOTO=$(or $(NSTANCE_MOTO),$(MOTO)/bin/moto_server) PYTHON=$(BIN)/python scripts/test-terraform.sh

clusterctl: install ## Build dist/clusterctl: the provider's components and templates for clusterctl (needs kubectl)
	@$(BIN)/python scripts/build_clusterctl.py

test-charts: tools ## Test overlays, Helm charts and clusterctl with the real programs (needs Go)
	@PYTHONPATH=tests $(BIN)/python -m support.go_programs $(BIN)/pytest -q -rs tests/component/packaging

$(PROGRAMS): install ## Create bin/<program>
	@mkdir -p bin
	@printf '#!/bin/sh\nexec "%s/%s" "$$@"\n' "$(CURDIR)/$(BIN)" $@ > bin/$@
	@chmod +x bin/$@

clean: clean-dev ## Also remove .venv and all build results
	rm -rf $(VENV) bin build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis src/*.egg-info
