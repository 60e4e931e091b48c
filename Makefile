# Sojourn: `make serve` brings a model up under its SLA; `make test` checks everything.
PYTHON ?= python3.11
VENV := .venv
STAMP := $(VENV)/.installed

.PHONY: serve setup test clean

serve: $(STAMP)
	@$(VENV)/bin/sojourn serve

setup: $(STAMP)

test: $(STAMP)
	@scripts/check

clean:
	rm -rf $(VENV)

$(STAMP): requirements.lock pyproject.toml scripts/setup
	@PYTHON=$(PYTHON) scripts/setup $(VENV)
	@touch $@
