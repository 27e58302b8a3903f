# Every target sets up what it needs; nothing is written outside this checkout.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help install lint format test bench proto check dev dev-tmux clean-dev clean agent-pyz schema

help: ## Show the targets
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

install: $(STAMP) ## Make .venv with all programs in .venv/bin

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (about a minute the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	@touch $(STAMP)

lint: install ## Check format, types, and that the architecture drawing holds
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: install ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: install ## Run all tests
	$(BIN)/pytest -q -n 2 --dist loadfile

proto: install ## Generate the gRPC code from proto/
	PATH=$(CURDIR)/$(BIN):$$PATH $(BIN)/python -m grpc_tools.protoc -I proto --python_out=src --mypy_out=src --grpclib_python_out=src proto/nstance/v1/*.proto
