# Everything a contributor types. Each target sets up what it needs and does not do it twice.
#
#   make run       the main job on real input, on whatever this machine has
#   make test      the test suite (what CI runs after `make check`)
#   make check     ruff, mypy, import-linter, generated files
#   make test-all  the suite on every interpreter found: 3.11, 3.12, 3.13
#   make test-vm   the runner as a user's service in an emulated machine, which is built first (root, once)
#   make bench     the figures, each beside its floor
#   make soak      an hour of audio in some minutes while everything around it fails; SOAK_SECONDS=86400 for longer
#   make fuzz      a million mutated frames against everything that reads frames
#   make properties  hostile steps through the gate, against what the policy promises
#   make mutants     every small change of a rule, and whether a test notices it
#   make docs      regenerates what is generated in docs/, protocol/ and man/
#   make lock      resolves requirements.lock anew

VENV ?= .venv
VERSION ?=
BIN := $(VENV)/bin
STAMPS := .cache/stamps
PYTEST_ARGS ?=
# Tests wait for processes more than they compute: one worker more than there are processors.
JOBS ?= $(shell expr $$(nproc) + 1)
FUZZ_ARGS ?=
SOAK_ARGS ?=
PROPERTIES_ARGS ?=
MUTANTS_ARGS ?=
# Where writing bytecode is forbidden each of the thousands of processes that the tests start would compile all it imports.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: run test check test-all test-vm bench soak fuzz properties mutants docs lock clean setup system

setup: $(VENV)/.complete

system: $(STAMPS)/system

# The list of system packages decides whether they are looked at again.
$(STAMPS)/system: scripts/system-packages
	@mkdir -p $(STAMPS)
	scripts/system-packages
	@touch $@

# --no-build-isolation: the build back end comes from the lock file, too.
$(VENV)/.complete: requirements.lock pyproject.toml | $(STAMPS)/system
	"$$(scripts/find-python $(VERSION) || { echo 'No Python 3.11 or newer was found.' >&2; exit 1; })" -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

run: setup
	$(BIN)/python scripts/run_demo.py

test: setup $(STAMPS)/system-tests
	$(BIN)/python -m pytest -m "not soak and not vm" -n $(JOBS) --dist worksteal $(PYTEST_ARGS)

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/generate_schema.py --check
	$(BIN)/python scripts/generate_diagrams.py --check
	$(BIN)/python scripts/generate_policy_table.py --check
	$(BIN)/python scripts/generate_man.py --check

test-all: setup
	@set -e; for version in 3.11 3.12 3.13; do \
		if ! scripts/find-python $$version >/dev/null; then echo "== Python $$version: not found, left out"; continue; fi; \
		echo "== Python $$version"; \
		$(MAKE) --no-print-directory test VENV=.venv-$$version VERSION=$$version; \
	done

$(STAMPS)/system-tests $(STAMPS)/system-vm: $(STAMPS)/system-%: scripts/system-packages
	@mkdir -p $(STAMPS)
	scripts/system-packages --$*
	@touch $@

# Two groups of files side by side; the tests of one file share a guest.
test-vm: setup $(STAMPS)/system-vm
	PYTHONPATH=tests $(BIN)/python -m vm.bed build
	$(BIN)/python -m pytest -m vm tests/vm -n 2 --dist loadscope $(PYTEST_ARGS)

bench: setup
	$(BIN)/python tests/bench/relay.py
	$(BIN)/python tests/bench/streams.py
	$(BIN)/python tests/bench/dataplane.py
	$(BIN)/python tests/bench/release.py
	$(BIN)/python tests/bench/startup.py
	$(BIN)/python tests/bench/speech.py
	$(BIN)/python tests/bench/wake.py

soak: setup
	$(BIN)/python -m pytest -m soak tests/soak $(SOAK_ARGS)

fuzz: setup
	PYTHONPATH=tests $(BIN)/python -m fuzz $(FUZZ_ARGS)

properties: setup
	PYTHONPATH=tests $(BIN)/python -m attack $(PROPERTIES_ARGS)

mutants: setup
	PYTHONPATH=tests $(BIN)/python -m mutants --jobs $$(nproc) $(MUTANTS_ARGS)

docs: setup
	$(BIN)/python scripts/generate_schema.py
	$(BIN)/python scripts/generate_diagrams.py
	$(BIN)/python scripts/generate_policy_table.py
	$(BIN)/python scripts/generate_man.py

lock: setup
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile pyproject.toml --extra all --group dev --universal --python-version 3.11 \
		--generate-hashes --no-emit-index-url --no-header --no-annotate --quiet -o requirements.lock

clean:
	rm -rf .venv .venv-* .cache .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
