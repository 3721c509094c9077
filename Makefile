# Two commands: `make demo` and `make test`. Both set up what they need in .venv and leave the machine as it was.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# pip of the system installs into the environment, so that a Python without ensurepip (Debian's) is enough.
PIP_INSTALL = $(PYTHON) -m pip --python $(BIN)/python install --quiet --disable-pip-version-check

.PHONY: demo test check bench deploy-tools lock clean

demo: $(VENV)/local
	$(BIN)/sluice demo

test: $(VENV)/dev
	$(BIN)/pytest -m "not deploy"

check: $(VENV)/dev deploy-tools
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest

bench: $(VENV)/dev
	$(BIN)/python -m benchmarks

# The AWS SAM command line and a loopback AWS, each in an environment of its own: their pins disagree with ours and with each other.
# The locks are complete, and pip up to 23 reads `name[extra]` in a dependency as not pinned: hence --no-deps.
deploy-tools: .venv-sam/installed .venv-ministack/installed

.venv-%/installed: requirements/%.txt
	$(PYTHON) -m venv --without-pip --clear $(@D)
	$(PYTHON) -m pip --python $(@D)/bin/python install --quiet --disable-pip-version-check --require-hashes --no-deps -r $<
	touch $@

$(VENV)/bin/python:
	$(PYTHON) -m venv --without-pip $(VENV)

$(VENV)/local: requirements/local.txt pyproject.toml | $(VENV)/bin/python
	$(PIP_INSTALL) --require-hashes -r $<
	$(PIP_INSTALL) --no-deps --no-build-isolation -e .
	touch $@

$(VENV)/dev: requirements/dev.txt pyproject.toml | $(VENV)/bin/python
	$(PIP_INSTALL) --require-hashes -r $<
	$(PIP_INSTALL) --no-deps --no-build-isolation -e .
	touch $@ $(VENV)/local

clean:
	rm -rf $(VENV) .venv-sam .venv-ministack .aws-sam .networks
