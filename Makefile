# Every target installs what it needs into .venv by itself; nothing has to be activated.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# Exact versions, as pip's constraints; LOCK= takes the newest that pyproject.toml allows.
LOCK := requirements.lock
AUDIT := $(VENV)/audit
CLIENTS := $(VENV)/clients
# What gets PyTorch's build without CUDA.
CPU_TORCH := PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
# One pytest worker per core.
PARALLEL := -n auto --maxprocesses 8
# A worker of the server tests often waits, for servers that start, drain and stop: one more than cores, at most 3,
# and as many as have 8 GiB each for their servers. The longest files come first (tests/server/conftest.py).
SERVER_WORKERS = $(or $(shell awk -v cores=$$(nproc) '/^MemAvailable/ { n = int($$2 / (8 * 2^20)) } \
	END { if (n > cores + 1) n = cores + 1; if (n > 3) n = 3; if (n < 1) n = 1; print n }' /proc/meminfo 2>/dev/null),1)
PARALLEL_SERVERS = -n $(SERVER_WORKERS) --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help install demo serve doctor check test test-all durations test-gpu image-test soak bench bench-gpu lint format docs audit dist clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

install: $(INSTALLED) ## Install the server, the client and the tools into .venv

$(INSTALLED): pyproject.toml client/pyproject.toml $(LOCK)
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; (3, 10) <= v < (3, 13) or sys.exit(f"hiscore needs CPython 3.10 to 3.12; {sys.executable} is {v[0]}.{v[1]}. Try: make PYTHON=python3.11")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV): some 150 packages, which pip names one after the other."
	@test -n "$(PIP_EXTRA_INDEX_URL)" || ls /dev/nvidia[0-9]* >/dev/null 2>&1 || \
		echo "This machine has no NVIDIA GPU. Without CUDA the download is gigabytes smaller: make install $(CPU_TORCH)"
	@$(BIN)/python -m pip install --disable-pip-version-check $(addprefix --constraint ,$(LOCK)) \
		--editable './client[cli,offline]' --editable '.[triton,dev,perf]'
	@touch $@

demo: $(INSTALLED) ## Score real items by a real model behind a real tritonserver
	@$(BIN)/python -m hiscore_client.cli.demo

# Settings come from the environment or as make variables: MODEL=... make serve, or make serve MODEL=...
# Make tells which variables were given to it, so that a misspelt one is not silently ignored.
GIVEN = $(foreach name,$(.VARIABLES),$(if $(findstring command,$(origin $(name))),$(name)))
serve: $(INSTALLED) ## Run the server in the foreground (settings: docs/settings.md; CHECK=1: only check)
	@exec $(BIN)/python -m hiscore.launcher --make-variables '$(GIVEN)' $(if $(CHECK),--check)

doctor: $(INSTALLED) ## Print what a bug report needs: versions, devices, limits, shared memory, ports
	@$(BIN)/python -m hiscore.launcher.doctor

# Three tiers, each with all that the one before it has (tests/README.md).
check: lint ## What to run before every commit: lint, then the fast unit tests, in parallel (2 minutes on 2 cores)
	@$(BIN)/python -m pytest -q $(PARALLEL) -m "not slow and not exhaustive" tests/unit tests/client

test: lint $(CLIENTS)/.installed ## Lint, all unit tests but full matrices, the main paths of a real server (10 minutes)
	@$(BIN)/python -m pytest -q $(PARALLEL) -m "not exhaustive" tests/unit tests/client
	@$(BIN)/python -m pytest -q $(PARALLEL_SERVERS) -m "not exhaustive" tests/server

test-all: test ## make test, then every other test that needs no GPU (35 minutes)
	@$(BIN)/python -m pytest -q $(PARALLEL) -m exhaustive tests/unit tests/client
	@$(BIN)/python -m pytest -q $(PARALLEL_SERVERS) -m exhaustive tests/server

durations: $(INSTALLED) ## Record what the unit tests take (tests/durations.json), which a test holds to a budget
	@$(BIN)/python -m pytest -q $(PARALLEL) -p tests.support.durations -m "not exhaustive" tests/unit tests/client

# Most of their time is compiling, so several processes share the GPU (nine were measured on one of 80 GB); some tests
# need all of its memory, lose it, or need two.
GPU_ALONE := $(addprefix tests/gpu/,test_memory_gpu.py test_device_lost_gpu.py test_tensor_parallel.py)
test-gpu: $(INSTALLED) ## Run the tests that need one CUDA GPU, by GPU_WORKERS (4) processes
	@$(BIN)/python -m pytest -q -n $(or $(GPU_WORKERS),4) --dist load $(addprefix --ignore=,$(GPU_ALONE)) tests/gpu \
		tests/unit/kernels tests/unit/layers/test_triton_ops.py tests/unit/attention/test_packed_triton.py
	@$(BIN)/python -m pytest $(GPU_ALONE)

image-test: $(INSTALLED) ## Build the image on a stand-in for NVIDIA's, start it and use it (as root; some 4 minutes)
	@$(BIN)/python tools/image

soak: $(INSTALLED) ## Make calls of all kinds for SOAK_MINUTES (30) and look for growth
	@SOAK_MINUTES=$(or $(SOAK_MINUTES),30) $(BIN)/python -m pytest -s tests/server/test_soak.py

# More options as make variables: make bench BENCH='--only serving,ablations --out DIR'
bench: $(INSTALLED) ## Measure what a CPU can show, and write a report (10 minutes)
	@$(BIN)/python -m perf.bench $(BENCH)

bench-gpu: $(INSTALLED) ## Measure everything on a CUDA GPU, and write a report (some 40 minutes)
	@$(BIN)/python -m perf.bench --full $(BENCH)

lint: $(INSTALLED) ## ruff, mypy, the import rules and the ceilings of tools/size.py
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python tools/size.py

format: $(INSTALLED) ## Format and fix what can be fixed
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

docs: $(INSTALLED) ## Write docs/settings.md, docs/models.md and the drawings
	@$(BIN)/python tools/settings_page.py > docs/settings.md
	@$(BIN)/python tools/models_page.py > docs/models.md
	@$(BIN)/python tools/house.py
	@$(BIN)/python tools/drawings.py

audit: $(INSTALLED) $(AUDIT)/.installed ## Known vulnerabilities of what is installed, and its SBOM (sbom.cdx.json)
	@$(AUDIT)/bin/python tools/audit.py $(VENV) sbom.cdx.json

$(AUDIT)/.installed: requirements-audit.lock
	@$(BIN)/python -m venv $(AUDIT)
	@$(AUDIT)/bin/python -m pip install --quiet --disable-pip-version-check --requirement requirements-audit.lock
	@touch $@

$(CLIENTS)/.installed: requirements-clients.lock | $(INSTALLED)
	@test -x $(CLIENTS)/bin/python || $(BIN)/python -m venv $(CLIENTS)
	@echo "Installing clients of other servers into $(CLIENTS), for the tests of the HTTP API."
	@$(CLIENTS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: \
		--requirement requirements-clients.lock
	@touch $@

dist: audit ## Build both wheels, release notes, SBOM and their SHA-256 into dist/ (IMAGE=name@sha256:... names the image)
	@$(BIN)/python tools/dist.py

clean: ## Remove what the targets built
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
