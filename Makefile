# Two targets do everything from a fresh clone; both make their own environment in .venv.
#   make demo   the main job on real servers
#   make test   every test, with the same examples each time (./check and make soak look for new ones)
# The official conformance suite is a test where it can be installed (it needs node 22); make conformance shows
# its tables.
PYTHON ?= python3
# So many tests at once: twice the cores of a small machine, since half of their time is waiting. Each has a
# carpool of its own, so they need not know of each other.
JOBS ?= 4
PIP = .venv/bin/python -m pip --disable-pip-version-check --quiet

.PHONY: demo test test-pythons check bench conformance soak clean

demo: .venv/demo
	.venv/bin/carpool demo

test:
	@$(MAKE) --no-print-directory --jobs=2 .venv/ready .venv/peers/ready
	@$(MAKE) --no-print-directory .venv/conformance/ready || echo 'carpool: without the conformance suite: its test is skipped' >&2
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

check: .venv/ready .venv/peers/ready
	./check

bench: .venv/ready
	.venv/bin/python -m bench.compare

# Both requirement sets against our fixture, without carpool and through it (docs/conformance.md).
conformance: .venv/ready .venv/conformance/ready
	.venv/bin/python -m tests.conformance.run
	.venv/bin/python -m tests.conformance.run --through

# New seeds of the simulated world and of the machines on real sockets, for so many seconds.
SOAK_S ?= 600
soak: .venv/ready
	.venv/bin/python -m tests.world.soak $(SOAK_S)

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/demo: .venv/bin/python pyproject.toml
	$(PIP) install --editable '.[demo,http]'
	@touch $@

# A virtual environment's own pip may be too old for dependency groups (25.1).
.venv/ready: .venv/bin/python pyproject.toml
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
