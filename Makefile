# Three targets do everything from a fresh clone; they make their own environment in .venv.
#   make demo   the main job on real servers
#   make test   every test, with the same examples each time (./check and make soak look for new ones)
#   make dist   wheel and sdist in dist/, and a trial of the wheel in an empty environment
# Real agent programs are tests of their own: make programs-ci runs two, make programs all of them (docs/testing.md).
# The official conformance suite is a test where it can be installed (it needs node 22); make conformance shows
# its tables.
PYTHON ?= python3
# So many tests at once: twice the cores of a small machine, since half of their time is waiting. Each has a
# carpool of its own, so they need not know of each other.
JOBS ?= 4
# Tests import the same modules in hundreds of processes: compiled once, whatever the caller's shell says.
unexport PYTHONDONTWRITEBYTECODE
PIP = .venv/bin/python -m pip --disable-pip-version-check --quiet
# Ends a recipe with one plain line if the Python $(1) is missing or too old; $(2) says what to do then.
need_python = command -v $(1) >/dev/null || \
    { echo 'carpool needs Python 3.11 or newer: there is no $(1) here; $(2)' >&2; exit 1; }; \
    $(1) -c 'import sys; v = sys.version_info; \
    v[:2] < (3, 11) and sys.exit("carpool needs Python 3.11 or newer: $(1) is %d.%d; $(2)" % v[:2])'
NAME_PYTHON = name another one, as in: make $(or $(firstword $(MAKECMDGOALS)),demo) PYTHON=python3.12
CLEAN_FIRST = remove .venv with: make clean

.PHONY: demo test test-pythons check browser bench conformance soak mutants programs-small programs-ci programs dist clean

demo: .venv/demo
	.venv/bin/carpool demo

test:
	@$(MAKE) --no-print-directory --jobs=2 .venv/ready .venv/peers/ready
	@$(MAKE) --no-print-directory --jobs=3 programs-small conformance-suite compiled-tests
	.venv/bin/pytest -q -n $(JOBS) --dist worksteal --hypothesis-seed=0

# The suite without its live part on every Python that is here, each in an environment of its own.
# PYTHONS='python3.12 /opt/python3.13/bin/python3' names others.
PYTHONS ?= python3.11 python3.12 python3.13
test-pythons:
	@for python in $(PYTHONS); do \
	    version=$$($$python -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || \
	        { echo "carpool: $$python is not here: not tested" >&2; continue; }; \
	    here=.venv/pythons/$$version; \
	    $$python -m venv $$here && \
	    $$here/bin/python -m pip --disable-pip-version-check --quiet install --upgrade 'pip>=25.1' && \
	    $$here/bin/python -m pip --disable-pip-version-check --quiet install --editable '.[demo,http]' --group dev && \
	    echo "carpool: Python $$version" && \
	    $$here/bin/pytest -q -n $(JOBS) --dist worksteal --hypothesis-seed=0 --ignore=tests/live --ignore=tests/chaos \
	        || exit 1; \
	done

.PHONY: conformance-suite compiled-tests
conformance-suite:
	@$(MAKE) --no-print-directory .venv/conformance/ready || echo 'carpool: without the conformance suite: its test is skipped' >&2

# While the installers wait for the network: without it, each of the workers compiles all modules of the tests.
compiled-tests:
	@.venv/bin/pytest -q --collect-only >/dev/null || true

check: .venv/ready .venv/peers/ready
	./check

# The web page in a headless Chromium (Debian: apt install chromium); a minute or two. `make test` leaves it out.
browser: .venv/ready
	CARPOOL_CHECK=1 .venv/bin/pytest -q tests/browser

# Other people's programs, at pinned versions below .venv/programs; the reason for one that cannot be installed is
# said, and its tests are skipped. PROGRAMS='codex kilo' names some for `make programs`.
INSTALL_PROGRAMS = tests/programs/install .venv/bin/python .venv/programs
PROGRAMS ?= $(patsubst %.txt,%,$(notdir $(wildcard tests/programs/pins/*/*)))
programs-small: .venv/bin/python
	@$(INSTALL_PROGRAMS) mcporter inspector mcp-remote || true

programs-ci: .venv/ready .venv/peers/ready
	@$(INSTALL_PROGRAMS) codex claude-code || true
	CARPOOL_CHECK=1 CARPOOL_PROGRAMS=ci .venv/bin/pytest -q -n 2 --dist loadgroup tests/programs/runs

# All programs, their first turns in five pairs, and bridges; an hour and more. It writes what it saw into
# record.json, and ends with an error where a run failed or a difference is not known.
RECORD = .venv/bin/python -m tests.programs.record
NAMED_PROGRAMS = $(if $(filter command line,$(origin PROGRAMS)),$(PROGRAMS))
programs: .venv/ready .venv/peers/ready
	@$(INSTALL_PROGRAMS) $(PROGRAMS) || true
	failed=0; for part in '' --first-turns --bridges; do $(RECORD) $$part $(NAMED_PROGRAMS) || failed=1; done; \
	.venv/bin/python -m tests.programs.page > docs/clients.md; \
	.venv/bin/pytest -q tests/programs/test_record.py || failed=1; exit $$failed

bench: .venv/ready
	.venv/bin/python -m bench.compare

# Both requirement sets against our fixture, without carpool and through it (docs/conformance.md).
conformance: .venv/ready .venv/conformance/ready
	.venv/bin/python -m tests.conformance.run
	.venv/bin/python -m tests.conformance.run --through

# Both are built from what git knows; the wheel is built from the sdist. The trial runs outside of this directory,
# in an environment with nothing else in it.
dist: .venv/bin/python
	@$(call need_python,.venv/bin/python,$(CLEAN_FIRST))
	rm -rf dist
	$(PIP) install 'build>=1.2'
	.venv/bin/python -m build --outdir dist .
	@set -e; trial=$$(mktemp -d); trap 'rm -rf "$$trial"' EXIT; wheel=$$(echo $(CURDIR)/dist/carpool-*.whl); \
	    .venv/bin/python -m venv "$$trial/env"; \
	    "$$trial/env/bin/python" -m pip --disable-pip-version-check --quiet install "$$wheel[demo,http]"; \
	    cd "$$trial"; env/bin/carpool --version; env/bin/carpool demo; echo "tried: $$wheel"

# New seeds of the simulated world and of the machines on real sockets, for so many seconds.
SOAK_S ?= 600
soak: .venv/ready
	.venv/bin/python -m tests.world.soak $(SOAK_S)

# Small changes of the product that no near test sees (docs/testing.md), in the modules that have changed as for
# `./check --fast`, or that differ from BASE, or in FILES='a.py b.py', for so many SECONDS; SEED chooses others.
mutants: .venv/ready
	BASE='$(BASE)' FILES='$(FILES)' SECONDS='$(or $(SECONDS),600)' SEED='$(or $(SEED),0)' \
	    .venv/bin/python -m tests.mutants

.venv/bin/python:
	@$(call need_python,$(PYTHON),$(NAME_PYTHON))
	$(PYTHON) -m venv .venv

.venv/demo: .venv/bin/python pyproject.toml
	@$(call need_python,.venv/bin/python,$(CLEAN_FIRST))
	$(PIP) install --editable '.[demo,http]'
	@touch $@

# A virtual environment's own pip may be too old for dependency groups (25.1).
.venv/ready: .venv/bin/python pyproject.toml
	@$(call need_python,.venv/bin/python,$(CLEAN_FIRST))
	$(PIP) install --upgrade 'pip>=25.1'
	$(PIP) install --editable '.[demo,http]' --group dev
	@touch $@ .venv/demo

# Other people's agents and servers for the live tests: mcp 1.29, node, the TypeScript SDK and servers.
.venv/peers/ready: .venv/bin/python $(addprefix tests/kit/peers/,install requirements.txt package.json package-lock.json)
	tests/kit/peers/install $(PYTHON) .venv/peers

# The conformance suite and a node 22 for it.
.venv/conformance/ready: .venv/bin/python $(addprefix tests/conformance/,install package.json package-lock.json)
	tests/conformance/install .venv/bin/python .venv/conformance

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis dist
