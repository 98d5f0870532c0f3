# Everything that CI runs, a developer can run; `make help` lists it. Logic of more than a line is in scripts/.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help run test setup fmt lint type attack bench bench-setup soak check wheel test-services clean

BIN := .venv/bin
CRATE := crates/stockade-cell
# rustup leaves cargo out of root's PATH.
export PATH := $(PATH):$(HOME)/.cargo/bin

# make test T='tests/unit -x'    arguments for pytest
T ?=
# make bench ONLY=cold_true,exec_true
ONLY ?=

help: ## Show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: setup ## Set up, then run the demonstration: an agent behind walls
	@$(BIN)/python examples/accident.py

test: setup ## Set up, then all core tests, as root and as an ordinary user (T='...' for pytest)
	cd $(CRATE) && cargo test --quiet --locked
	$(BIN)/python scripts/run_tests.py -- $(T)

setup: ## Create .venv and install system packages, dependencies and Stockade into it
	@scripts/setup.sh

fmt: setup ## Format the Python and Rust code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix-only --quiet .
	cd $(CRATE) && cargo fmt

lint: setup ## Check style, layers, licences and Rust warnings
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PYTHONPATH=src $(BIN)/lint-imports
	$(BIN)/python scripts/check_licences.py
	@scripts/lint_rust.sh

type: setup ## Check types, strictly, in src, tests and scripts
	$(BIN)/mypy

attack: setup ## Only the attack tests, as root and as an ordinary user
	$(BIN)/python scripts/run_tests.py -m attack -- $(T)

bench: setup ## Measure ours beside peers (ONLY=key,key for some)
	$(BIN)/python bench/run.py $(if $(ONLY),--only $(ONLY))

bench-setup: setup ## Install the peers that the benchmark compares with
	@scripts/bench_setup.sh

soak: setup ## Thousands of sandboxes in a row; takes long
	$(BIN)/python scripts/run_tests.py -m soak -- --timeout=7200 $(T)

check: lint type test ## Everything before a commit: lint, type, test

wheel: setup ## Build a wheel into dist/ that installs without Rust, and try it
	@scripts/wheel.sh

test-services: setup ## Tests against real servers, clients and guests
	$(BIN)/python scripts/run_tests.py -m services --once --may-be-empty -- --timeout=600 $(T)

clean: ## Remove what was built: .venv, .peers, dist, target and caches
	rm -rf .venv .peers .setup.lock dist $(CRATE)/target src/stockade/_bin
	rm -rf .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
