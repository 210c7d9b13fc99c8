# SPDX-License-Identifier: Apache-2.0
# The one front door. `make help` lists what there is.

SHELL := /bin/bash
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

ROOT := $(CURDIR)
BUILD := $(ROOT)/build
BIN := $(ROOT)/.venv/bin
PYTHON := $(BIN)/python
HOST_PYTHON = $(shell for python in /usr/bin/python3 python3 python3.13 python3.12 python3.11; do \
  "$$python" -c 'import ssl, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null \
    && { echo "$$python"; break; }; done)
STEP := $(ROOT)/tests/testkit/step
KUBERNETES ?= 1.37
FUZZ_S ?= 600
FUZZ_SEED ?= 1
CLUSTER := $(PYTHON) -m tests.cluster
PYTEST := $(BIN)/pytest --durations=5
AGAIN := tests/testkit/again
ON_A_CLUSTER = env KUBERNETES=$(KUBERNETES) $(AGAIN) $(PYTEST)
CUDA_HEADERS = $(shell $(PYTHON) -c 'import nvidia.cu13 as m; print(m.__path__[0])')/include
C_FILES = $(shell git ls-files --cached --others --exclude-standard '*.c' '*.h')
SHELL_FILES = .ci/run tests/testkit/again tests/testkit/step tests/testkit/packages deploy/images/simulated-gpu.sh
PYTHON_PATHS = api webhook node-agent cli deploy tests shim

##@ Try it
.PHONY: demo demo-down
demo: images testbed ## Start a cluster with a simulated GPU and show two pods sharing it
	@$(STEP) "demo" $(PYTHON) -m tests.system.demo

demo-down: setup ## Remove the demo's cluster; leaves nothing
	@$(STEP) "remove the demo cluster" $(CLUSTER) down --name demo

##@ Test it
.PHONY: test test-unit test-shim test-shim-sanitized test-gpu test-cluster test-faults test-versions lint
.PHONY: bench bench-shim bench-compute bench-agent bench-webhook fuzz fuzz-shim fuzz-agent
test: lint test-unit test-shim test-cluster ## All tests of one Kubernetes version

test-unit: setup helm sim shim ## Python parts without a cluster, and the contracts between parts
	@$(STEP) "unit and contract tests" $(AGAIN) $(PYTEST) tests/unit tests/contract

test-shim: setup sim shim ## Simulated GPU and shim, by the simulated driver's own books
	@$(STEP) "simulated GPU and shim tests" $(PYTEST) shim/sim/tests shim/tests --ignore shim/tests/compute
	@$(STEP) "compute shares" $(AGAIN) $(PYTEST) shim/tests/compute

test-cluster: images testbed ## Test bed, then Aliquot, on a real Kubernetes (KUBERNETES=1.37)
	@$(STEP) "test bed tests" $(ON_A_CLUSTER) tests/cluster/tests
	@$(STEP) "webhook and controller on Kubernetes $(KUBERNETES)" $(ON_A_CLUSTER) tests/webhook_cluster
	@$(STEP) "the chart on Kubernetes $(KUBERNETES)" $(ON_A_CLUSTER) tests/chart
	@$(STEP) "Aliquot on Kubernetes $(KUBERNETES)" $(ON_A_CLUSTER) tests/system

test-faults: images testbed ## Only the cluster tests that kill, restart and break things
	@$(STEP) "fault tests on Kubernetes $(KUBERNETES)" $(ON_A_CLUSTER) -m faults tests/system

test-versions: ## The cluster tests on each older Kubernetes (builds each once: some 10 minutes)
	@for version in 1.36 1.35; do $(MAKE) test-cluster KUBERNETES=$$version || exit 1; done

lint: setup ## Formatters, linters, types, import rules, licence headers
	@$(STEP) "ruff" $(BIN)/ruff check $(PYTHON_PATHS)
	@$(STEP) "ruff format" $(BIN)/ruff format --check $(PYTHON_PATHS)
	@$(STEP) "mypy" $(BIN)/mypy $(PYTHON_PATHS)
	@$(STEP) "import rules" $(BIN)/lint-imports
	@$(STEP) "clang-format" $(BIN)/clang-format --style=file:shim/.clang-format --dry-run -Werror $(C_FILES)
	@$(STEP) "gcc -fanalyzer" $(MAKE) analyze
	@$(STEP) "shellcheck" shellcheck $(SHELL_FILES)
	@$(STEP) "licence headers" $(PYTHON) -m tests.testkit.headers

.PHONY: analyze
analyze:
	@$(MAKE) -s -C shim analyze BUILD=$(BUILD)/shim CUDA_INCLUDE=$(CUDA_HEADERS) NVML_INCLUDE=$(CUDA_HEADERS)
	@$(MAKE) -s -C shim/sim analyze BUILD=$(BUILD)/sim CUDA_INCLUDE=$(CUDA_HEADERS) NVML_INCLUDE=$(CUDA_HEADERS)

test-shim-sanitized: setup sim ## The shim's tests with address, undefined-behaviour and thread sanitizers
	@$(STEP) "shim tests under sanitizers" $(PYTHON) -m shim.tests.sanitized

test-gpu: setup shim ## Experiments on this machine's real GPU, ten minutes: build/gpu/answers.json
	@$(STEP) "experiments on a real GPU" env PYTHONPATH=$(ROOT):$(ROOT)/api:$(ROOT)/node-agent python3 -m tests.gpu

fuzz-shim: setup ## Fuzz what the shim reads (needs clang)
	@$(STEP) "fuzz the shim" $(MAKE) -s -C shim fuzz BUILD=$(BUILD)/shim FUZZ_S=$(FUZZ_S)

bench: bench-shim ## Measure; tables on the screen, figures in build/bench/*.json
	@$(STEP) "benchmark of the agent" $(PYTHON) -m tests.bench.agent
	@$(STEP) "benchmark of the webhook" $(PYTHON) -m tests.bench.webhook

bench-shim: setup sim shim ## Only the shim: what it adds to the bare simulated driver
	@$(STEP) "benchmark of the shim" $(PYTHON) -m tests.bench.shim

bench-compute: setup sim shim ## Shares of GPU time: what tenants get, and what a launch costs (7 minutes)
	@$(STEP) "benchmark of compute shares" $(PYTHON) -m tests.bench.compute

bench-agent: setup sim shim ## Measure the node agent only
	@$(STEP) "benchmark of the agent" $(PYTHON) -m tests.bench.agent

bench-webhook: testbed ## Admission on a real API server, against other webhooks (10 minutes)
	@$(STEP) "benchmark of the webhook" $(PYTHON) -m tests.bench.webhook
	@$(STEP) "benchmark of the controller" $(PYTHON) -m tests.bench.webhook.controller
	@$(STEP) "benchmark of admission" $(PYTHON) -m tests.bench.webhook.cluster

fuzz: fuzz-shim fuzz-agent ## Feed every parser with nonsense (FUZZ_S=600 seconds for each, FUZZ_SEED=1)

fuzz-agent: setup ## Fuzz what the agent reads: opaque configuration, ledgers, checkpoints
	@$(BIN)/pip install --quiet "atheris>=3.0,<4"
	@$(STEP) "fuzz the agent's parsers" $(PYTHON) -m tests.fuzz.agent -max_total_time=$(FUZZ_S) -seed=$(FUZZ_SEED) -max_len=4096 -verbosity=0 -print_final_stats=1

##@ Work on it
.PHONY: setup packages shim shim-release wheel sim helm testbed images cluster-up cluster-down docs pictures lock clean help
setup: packages .venv/.installed ## Python environment in .venv, with everything installed (editable)

packages:
	@tests/testkit/packages tests/testkit/packages.txt tests/cluster/packages.txt

.venv/.installed: requirements.lock pyproject.toml node-agent/generate_stubs.py $(wildcard node-agent/aliquot_agent/kubeletapi/*/*/*.proto)
	@test -n "$(HOST_PYTHON)" || { echo "no Python 3.11 to 3.13 with ssl and venv here: install python3-venv" >&2; exit 1; }
	@$(STEP) "create .venv" $(HOST_PYTHON) -m venv --clear .venv
	@$(STEP) "install the locked dependencies (a minute or two)" $(BIN)/pip install --quiet --require-hashes -r requirements.lock
	@$(STEP) "install aliquot (editable)" $(BIN)/pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

sim: setup ## Simulated GPU: build/sim/libcuda.so.1, libnvidia-ml.so.1, aliquot-sim
	@$(STEP) "build the simulated GPU" $(MAKE) -s -C shim/sim BUILD=$(BUILD)/sim CUDA_INCLUDE=$(CUDA_HEADERS) NVML_INCLUDE=$(CUDA_HEADERS) PYTHON=$(PYTHON)

shim: setup ## Shim: build/shim/libaliquot.so
	@$(STEP) "build the shim" $(MAKE) -s -C shim BUILD=$(BUILD)/shim CUDA_INCLUDE=$(CUDA_HEADERS) NVML_INCLUDE=$(CUDA_HEADERS) PYTHON=$(PYTHON)

shim-release: setup ## Shim for glibc 2.17 and newer: build/shim/release/{x86_64,aarch64}/libaliquot.so
	@$(STEP) "build the shim for release" $(MAKE) -s -C shim release BUILD=$(BUILD)/shim PYTHON=$(PYTHON)

wheel: shim-release ## Wheel that carries the library for tenants by content hash: build/wheel/*.whl
	@rm -rf $(BUILD)/wheel
	@$(STEP) "wheel" env ALIQUOT_LIBRARIES=$(BUILD)/shim/release $(PYTHON) -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir $(BUILD)/wheel .

helm: setup ## Helm of the test bed; `.venv/bin/python -m tests.cluster helm` prints where it is
	@$(STEP) "Helm" $(CLUSTER) helm >/dev/null

testbed: setup helm ## Binaries of the test bed; built once, kept in ~/.cache/aliquot (16 minutes on 2 cores)
	@$(STEP) "test bed binaries for Kubernetes $(KUBERNETES)" $(CLUSTER) build --kubernetes $(KUBERNETES)

images: sim wheel ## Container images from their Dockerfiles, by Docker, without a registry: build/images/*.tar
	@$(STEP) "images (the first time two minutes)" $(PYTHON) -m tests.system.images

cluster-up: testbed ## A bare cluster to play with (python -m tests.cluster --help)
	@$(STEP) "start cluster" $(CLUSTER) up --kubernetes $(KUBERNETES)

cluster-down: setup ## Remove it
	@$(STEP) "remove cluster" $(CLUSTER) down

docs: setup ## Write the pages that are made from data: docs/semantics.md, the chart's README and dashboards
	@$(STEP) "semantics page" $(PYTHON) -m tests.unit.webhook.semantics
	@$(STEP) "chart page" $(PYTHON) -m tests.testkit.chart_readme
	@$(STEP) "dashboards" $(PYTHON) -m tests.testkit.dashboards

pictures: images testbed ## Draw the dashboards of docs/dashboards from a real Prometheus (5 minutes)
	@$(STEP) "pictures of the dashboards" $(PYTHON) -m tests.chart.pictures

lock: ## Resolve the dependency ranges of pyproject.toml again (needs uv)
	uv pip compile pyproject.toml --extra webhook --extra agent --extra cli --extra sim --group dev --upgrade \
	  --universal --python-version 3.11 --generate-hashes --no-annotate --no-header -q -o requirements.lock
	for part in webhook agent; do uv pip compile pyproject.toml --extra $$part -c requirements.lock \
	  --universal --python-version 3.11 --generate-hashes --no-annotate --no-header -q -o deploy/images/$$part.lock; done

clean: ## Remove build products (not ~/.cache/aliquot)
	rm -rf $(BUILD) .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
	find node-agent -name '*_pb2*' -delete

help: ## Show this help
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} \
	  /^[a-z-]+:.*## / {printf "  %-19s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
