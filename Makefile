# Everything a developer types. The first call makes .venv and installs what constraints.txt pins; later calls install nothing.
PYTHON ?= python3.11
ifeq ($(shell command -v $(PYTHON)),)
PYTHON := python3
endif
BIN := .venv/bin
STAMP := .venv/.installed
AXE_VERSION := 4.14.0
AXE := .venv/axe-core-$(AXE_VERSION).min.js
# Two files of tests side by side; threads that wait do not hold a core.
TEST := OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest -n 2 --dist loadfile
.PHONY: setup axe demo test smoke test-deploy soak bench lint clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[onnx,bench,dev]"
	touch $(STAMP)

# axe-core, with which the browser tests check that everyone can use the annotators' page; they skip that without it.
axe: $(AXE)

$(AXE): $(STAMP)
	cd .venv && npm pack --silent axe-core@$(AXE_VERSION)
	tar -xzOf .venv/axe-core-$(AXE_VERSION).tgz package/axe.min.js > $(AXE).part
	mv $(AXE).part $(AXE)

demo: $(STAMP)
	$(BIN)/cofal demo --out demo

test: $(STAMP)
	$(TEST) -m "not deploy and not smoke"

# Every table and figure of the paper on digits, twice: the second time nothing is computed and no byte changes. The first rounds of its
# full set-up.
smoke: $(STAMP)
	$(BIN)/python -m pytest -m smoke

# Real servers and sites as processes on loopback: security, kills, lost sites, full disks, wrong clocks, both engines
# compared; memory with 32 sites.
test-deploy: $(STAMP)
	$(TEST) tests/deploy tests/federation/test_server_memory.py

# 30 faults in a row, one in the middle of each phase; make test-deploy does 5.
soak: $(STAMP)
	COFAL_SOAK_FAULTS=30 $(BIN)/python -m pytest tests/deploy/test_kills.py -k many_faults

bench: $(STAMP)
	$(BIN)/python -m benchmarks.run

lint: $(STAMP)
	$(BIN)/ruff check --no-cache src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy

clean:
	rm -rf .venv demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
