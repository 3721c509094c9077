# Two commands: `make demo` and `make test`. Both set up what they need in .venv and leave the machine as it was.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The system's pip installs that of the lock, which installs all else: pip 23 takes twice as long to choose among what an index has.
# A Python without ensurepip (Debian's) is enough. The locks are complete, and pip up to 23 reads `name[extra]` in a dependency as not
# pinned: hence --no-deps. Python compiles what is imported, which is less.
PIP := $(VENV)/installer/pip
WITHOUT = --quiet --quiet --disable-pip-version-check --no-deps --no-compile
INSTALL = $(PYTHON) $(PIP) --python $(1)/bin/python install $(WITHOUT)

# What Python compiles it keeps, also where the environment forbids it: the tests start hundreds of processes.
export PYTHONDONTWRITEBYTECODE =

# On every core, and some more as some tests wait for others; a worker takes over what another has left.
MORE = 1
PYTEST = $(BIN)/pytest --numprocesses $$(($$(nproc) + $(MORE))) --dist worksteal --durations 20

.PHONY: demo test check proofs static every-test deploy-test bench studies deploy-tools release audit lock clean

demo: $(VENV)/local
	$(BIN)/sluice demo

# What takes long, or needs the deploy tools, is left to `make check`, which runs this with all tiers but that one and the proofs.
TIERS = not deploy and not full and not proof
test: $(VENV)/warm
	$(PYTEST) -m "$(TIERS)"

check: $(VENV)/dev
	$(MAKE) --jobs 3 every-test deploy-test

# What needs no run.
static: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# In one run, for every worker imports and collects all tests; types are looked at on one core while code is compiled on the other.
# One worker more than else, as the benchmarks, which mostly wait, keep one for half of the time.
every-test: static $(VENV)/warm
	$(MAKE) test TIERS="not deploy and not proof" MORE=2

# After a change of what they prove, and once a week.
proofs: $(VENV)/warm
	$(MAKE) test TIERS=proof

# In one process, beside the others: it mostly waits for what it has started. Of the files with such tests alone, to import no other.
deploy-test: $(VENV)/dev deploy-tools
	$(BIN)/pytest -m deploy --durations 5 $$(grep -rl --include='*.py' 'mark\.deploy' tests)

bench: $(VENV)/dev
	$(BIN)/python -m benchmarks

# The pages of docs with figures, again from what the studies left, and those of reference; `python -m studies.NAME --compute` runs one anew.
studies: $(VENV)/dev
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m studies

# The AWS SAM command line, a loopback AWS and what makes a release, each in an environment of its own: their pins disagree with ours and with each other.
deploy-tools: .venv-sam/installed .venv-ministack/installed .venv-release/installed

# The source, the wheel that is built of it, and what the image of the buffer installs, as CycloneDX; these two are the same again of a commit.
RELEASE = .venv-release/bin
release: .venv-release/installed
	rm -rf dist
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(RELEASE)/python -m build --no-isolation --outdir dist
	$(RELEASE)/cyclonedx-py requirements requirements/buffer.txt --pyproject pyproject.toml --mc-type application \
		--output-reproducible --output-format JSON --output-file dist/buffer.cdx.json

# What is known against the libraries that are installed anywhere; asks PyPI, and fails where that does not answer for each.
audit: .venv-release/installed
	for lock in requirements/*.txt; do $(RELEASE)/pip-audit --strict --require-hashes --disable-pip --requirement $$lock || exit 1; done

# Two locks of one tree: what runs the system here, and what also tests it.
# The complete lock names no order, so that two halves of it are installed at once: each beside the environment, as pip at its end
# reads what else is there and would find what the other has half written, and then moved into it.
MERGE = import os, shutil, sys; [shutil.copytree(half, "$(VENV)", copy_function=os.replace, dirs_exist_ok=True) for half in sys.argv[1:]]
$(VENV)/local $(VENV)/dev: $(VENV)/%: requirements/%.txt pyproject.toml | $(BIN)/python $(PIP)
	@echo "installing what $< locks into $(VENV)"
	@rm -rf $(VENV)/half-* && mkdir $(VENV)/half-0 $(VENV)/half-1
	@awk '/^[a-z]/ { n++ } { print > ("$(VENV)/half-" n % 2 ".txt") }' $<
	@printf '0\n1\n' | xargs -P 2 -I HALF $(call INSTALL,$(VENV)) --prefix $(VENV)/half-HALF --require-hashes -r $(VENV)/half-HALF.txt
	@$(BIN)/python -c '$(MERGE)' $(VENV)/half-0 $(VENV)/half-1
	@rm -rf $(VENV)/half-*
	@$(call INSTALL,$(VENV)) --no-build-isolation -e .
	touch $@

# What each of the tests' workers would make for itself: machine code, bytecode of the libraries, and of the tests what pytest makes.
$(VENV)/warm: $(VENV)/dev
	$(BIN)/pytest --collect-only --quiet > /dev/null & $(BIN)/sluice compile && wait $$!
	touch $@

$(BIN)/python:
	$(PYTHON) -m venv --without-pip $(VENV)

# Beside the environment, so that who installs is not taken for what is installed.
$(PIP): | $(BIN)/python
	awk '/^[a-z]/ { of_pip = /^pip==/ } of_pip' requirements/dev.txt > $(VENV)/installer.txt
	$(PYTHON) -m pip install $(WITHOUT) --require-hashes --target $(VENV)/installer -r $(VENV)/installer.txt

.venv-%/installed: requirements/%.txt | $(PIP)
	$(PYTHON) -m venv --without-pip --clear $(@D)
	$(call INSTALL,$(@D)) --require-hashes -r $<
	touch $@

# After a change of dependencies; the locks name versions and hashes, and no index.
COMPILE = $(BIN)/pip-compile --quiet --generate-hashes --strip-extras --allow-unsafe --no-header \
	--no-emit-index-url --no-emit-find-links --no-emit-trusted-host
EVERYTHING = --extra serve --extra optimizer --extra local
lock: $(VENV)/dev
	$(COMPILE) $(EVERYTHING) --extra otel --extra dev -o requirements/dev.txt pyproject.toml
	$(COMPILE) $(EVERYTHING) -c requirements/dev.txt -o requirements/local.txt pyproject.toml
	$(COMPILE) --extra serve --extra jwt --extra otel -c requirements/dev.txt -o requirements/buffer.txt pyproject.toml requirements/buffer.in
	$(COMPILE) --extra serve --extra optimizer -c requirements/dev.txt -o requirements/control.txt pyproject.toml requirements/control.in
	$(COMPILE) -o requirements/sam.txt requirements/sam.in
	$(COMPILE) -o requirements/ministack.txt requirements/ministack.in
	$(COMPILE) -o requirements/release.txt requirements/release.in

clean:
	rm -rf $(VENV) .venv-sam .venv-ministack .venv-release .aws-sam .networks build dist *.egg-info
