# The commands of the project. `make help` lists them. Commands that need .venv create it first.
SHELL := /bin/bash
.DEFAULT_GOAL := help
# Targets share one virtual environment and two cores.
.NOTPARALLEL:

VENV := .venv
BIN := $(VENV)/bin
# An interpreter of your choice: make setup PYTHON=python3.12
export PYTHON
# Processes that run tests: more than two cores, because many tests wait.
WORKERS ?= 4
export WORKERS
# The tests start hundreds of processes: keep their compiled bytecode, even if the environment disables that.
unexport PYTHONDONTWRITEBYTECODE
# Further options for pytest: make test PYTEST_ARGS="-k checkpoint"
PYTEST_ARGS ?=
export PYTEST_ARGS
# Further options of the studies: make speed SPEED_ARGS="--only latency --rounds 1"
SPEED_ARGS ?=
GROWTH_ARGS ?=
PLANTED_ARGS ?=
# Images to build, with their base images; all images if empty: make images IMAGES="relaax relaax-ale"
IMAGES ?=

STAMP := $(VENV)/setup.stamp
KERNELS := $(VENV)/kernels.stamp
GENERATED := relaax/rlx/rlx_pb2.py relaax/parameters/parameter_server_pb2.py relaax/parameters/parameter_server_pb2_grpc.py \
	relaax/replay/replay_pb2.py relaax/replay/replay_pb2_grpc.py \
	relaax/server/parameter_server/coordination/coordination_pb2.py relaax/server/parameter_server/coordination/coordination_pb2_grpc.py
PROTOS := $(wildcard protocol/*/v1/*.proto)
# The stamp contains the path of the checkout. A copied checkout, or one without generated code, is set up again.
ifneq ($(shell cat $(STAMP) 2>/dev/null),$(CURDIR))
STALE := always
else ifneq ($(words $(wildcard $(GENERATED))),$(words $(GENERATED)))
STALE := always
endif

.PHONY: help setup run test test-slow test-slow-short clients-check benchmarks speed growth planted-errors format docs pictures protocol-baseline images wheel clean always

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-18s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: $(STAMP) $(KERNELS) ## make .venv with every command of the project in .venv/bin

# Kernels that have changed since they were compiled. Without this, numba would compile them in every process.
$(KERNELS): $(STAMP) $(wildcard relaax/machine_code/*.py relaax/nn/host/*.py relaax/optim/*.py relaax/replay/table/*.py) \
		relaax/parameters/precision.py
	@$(BIN)/python -m relaax.machine_code.build || true
	@touch $@

$(STAMP): pyproject.toml setup.py constraints.txt .ci/setup $(PROTOS) $(STALE)
	@.ci/setup
	@echo "$(CURDIR)" > $@

run: setup ## train CartPole on this machine until it is solved
	@$(BIN)/relaax run da3c_gym_cartpole --clients 4 --target-return 475

test: setup ## run every check and every fast test
	@.ci/checks

test-slow: setup ## run the slow tests: learning, soak, benchmarks
	@$(BIN)/pytest -m slow --record $(PYTEST_ARGS)

test-slow-short: setup ## run the slow tests in their short form, except those whose files have not changed
	@$(BIN)/pytest -m slow --short -n $(WORKERS) --dist loadgroup $(PYTEST_ARGS)

clients-check: setup ## build the clients of protocol/clients and run all their tests
	@tests/support/install-toolchains || true
	@$(BIN)/pytest tests/clients -m "slow or not slow" -n $(WORKERS) $(PYTEST_ARGS)
	@cd tests && ../$(BIN)/python -m support.client_languages

benchmarks: setup ## time the hot functions and write benchmarks.json
	@TF_NUM_INTRAOP_THREADS=1 TF_NUM_INTEROP_THREADS=1 $(BIN)/pytest tests/benchmarks -m slow --benchmark-enable --benchmark-json=benchmarks.json $(PYTEST_ARGS)

speed: setup ## measure speed, compared with environments alone and with peers, for docs/results (hours)
	@$(BIN)/python tests/benchmarks/speed.py $(SPEED_ARGS)

growth: setup ## measure how cost grows with work, for docs/results (hours)
	@$(BIN)/python tests/benchmarks/growth.py $(GROWTH_ARGS)

planted-errors: setup ## plant one error at a time and check that tests fail (half an hour): PLANTED_ARGS="--check", or names
	@$(BIN)/python tests/planted_errors.py $(PLANTED_ARGS)

format: setup ## format the code and apply the fixes of the linter
	@$(BIN)/ruff check --quiet --fix-only .
	@$(BIN)/ruff format .

docs: setup ## write generated pages: config/schema.json, the tables of docs/configuration.md, the glossary
	@$(BIN)/relaax schema --output config/schema.json
	@$(BIN)/relaax schema --markdown --output docs/configuration.md
	@cd tests && ../$(BIN)/python -m support.glossary

pictures: setup ## draw the terminal pictures of docs/images, from the data of tests/data/screens
	@cd tests && ../$(BIN)/python -m support.terminal_pictures

protocol-baseline: setup ## at a release: write the baseline for later protocol changes
	@$(BIN)/buf build protocol --exclude-source-info --output protocol/baseline/protocol.json

images: ## build the images, with docker, podman or buildah (ENGINE=...)
	@docker/images $(IMAGES)

wheel: ## build source distribution and wheel in dist/, in a separate environment
	@.ci/wheel

clean: ## remove generated, built and cached files, and .venv
	rm -rf $(VENV) build dist *.egg-info .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find relaax -name "*_pb2.py" -o -name "*_pb2.pyi" -o -name "*_pb2_grpc.py" -o -name "prebuilt_kernels.*.so" | xargs rm -f
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
