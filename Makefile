# Sojourn: `make serve` brings up a model under its SLA; `make help` lists the rest.
PYTHON ?= python3.11
VENV := .venv
STAMP := $(VENV)/.installed
DEV := $(VENV)/.installed-dev

.DEFAULT_GOAL := serve
.PHONY: help serve setup dev lint format unit slow integration test docs clean

serve: $(STAMP)  ## Serve the digits model on this machine, until Ctrl-C
	@$(VENV)/bin/sojourn serve

setup: $(STAMP)  ## Make the environment in .venv, for serving and load tests

dev: $(DEV)  ## Add to it what the checks, tests and documentation need

lint: $(DEV)  ## Check style, types and layers
	@scripts/lint

format: $(DEV)  ## Format the code and apply ruff's safe fixes
	@scripts/format

unit: $(DEV)  ## Run the quick unit tests, without Ray
	@scripts/unit

slow: $(DEV)  ## Run the unit tests that take a second or more
	@scripts/unit --slow

integration: $(DEV)  ## Run the tests that start a real Ray cluster
	@scripts/integration

test: $(DEV)  ## Run everything that CI runs: lint, unit, slow, integration
	@scripts/check

docs: $(DEV)  ## Build the documentation as a site, in build/site
	@scripts/docs

clean:  ## Remove the environment
	rm -rf $(VENV)

help:  ## Show this list
	@sed -n 's/^\([a-z]*\):.*##  *\(.*\)/\1|\2/p' $(MAKEFILE_LIST) | awk -F '|' '{ printf "  make %-12s %s\n", $$1, $$2 }'

$(STAMP): requirements.lock pyproject.toml scripts/setup
	@PYTHON=$(PYTHON) scripts/setup $(VENV)
	@touch $@

$(DEV): $(STAMP) requirements-dev.lock
	@scripts/setup $(VENV) --dev
	@touch $@
