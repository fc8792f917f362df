# Every target uses the one .venv, made on first use from the versions in constraints.txt.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
# Folder with real data for the benchmarks; without it they make their own.
DATA ?=
BIN := .venv/bin
PIP := $(BIN)/python -m pip --quiet --quiet --disable-pip-version-check install --constraint constraints.txt
STAMP := .venv/.installed

.PHONY: demo test test-fpga check bench soak docs clean

demo: $(STAMP)
	$(BIN)/headwater demo --out demo

test: $(STAMP)
	$(BIN)/python -m pytest -q -n 2

# What needs the extra `fpga`, which does not go with `dev`: in a venv of its own, over the one .venv.
test-fpga: $(STAMP)
	python="$$($(BIN)/python benchmarks/apart.py)" && "$$python" -m pytest -q -rs tests/models/test_binary.py

soak: $(STAMP)
	$(BIN)/python -m pytest -q -m soak --timeout 3600

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP)
	@held=0; for file in $$(grep -l __main__ benchmarks/*.py); do \
	  echo "== $$file"; $(BIN)/python "$$file" $(if $(DATA),--data "$(DATA)") || held=1; \
	done; exit $$held

docs: $(STAMP)
	$(BIN)/mkdocs build --strict --quiet

clean:
	rm -rf .venv build dist site demo .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests benchmarks -name __pycache__ -prune -exec rm -rf {} +

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "no python3 found; Headwater needs Python 3.11 or newer" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is older than Python 3.11; name a newer one: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "installing into .venv (a minute or two)"
	@test -x $(BIN)/python || "$(PYTHON)" -m venv .venv
	@$(PIP) hatchling editables
	@$(PIP) --no-build-isolation --editable '.[torch,train,region,codecs,models,labels,report,serve,dev]'
	@# The referee of the transforms' tests. Alone, because its metadata would bring a torch of its own choice.
	@$(PIP) --no-deps torchvision==0.28.0
	@touch $@
