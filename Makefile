# Needs Python 3.11 or later, and a network for the first installation. Changes nothing outside this directory. make test-all needs Java 17
# or later and Maven (Spark, Kafka), Chromium (the dashboard), tmux, Prometheus, PostgreSQL, Redis and other brokers besides. What is missing is
# left out, and the last line says how to get it.

PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11 python; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
BIN := .venv/bin
ARGS ?=
PYTEST = $(BIN)/pytest --numprocesses auto --maxprocesses 6 --dist loadscope --no-loadscope-reorder

# Tests start hundreds of processes. Without files of bytecode each of them would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help up unit check test test-all bench-check routed partitioned lint format blocking docs site bench release-check clean

help:
	@test -d .venv || echo "Nothing is installed here yet: make unit installs what it needs into .venv, and runs the quick tests."
	@echo "make up        install and run a cluster in the foreground (ARGS=\"--workers 2\" passes flags on)"
	@echo "make unit      test the core, the router, the protocol and the client: no extras, about a minute"
	@echo "make check     check format, lint, types and docs, and run make unit: before each commit"
	@echo "make test      test each part on real processes, with what Python brings: about five minutes (ARGS=\"-k fairness\" passes options on)"
	@echo "make test-all  test everything: Spark, Kafka, browser, kills, about a quarter of an hour"
	@echo "make bench-check  run each benchmark in its shortest form, and check what came of its messages: about five minutes"
	@echo "make routed    test once more what clients see, with all of it through the router"
	@echo "make partitioned  test once more what clients see, with queues of four partitions"
	@echo "make format    write the format that make check asks for"
	@echo "make blocking  write the blocking client, which is made from the asyncio one"
	@echo "make docs      write the tables of the docs, which are made from code"
	@echo "make site      build the documentation site into build/site, with search, for a browser"
	@echo "make bench     run all benchmarks, some of them for minutes (ARGS=\"--size tiny\" passes options on; ARGS=--help lists them)"
	@echo "make release-check  build the last commit into dist/, install it with each extra alone, check licences, size and import: about four minutes"

up: .venv/.installed
	@$(BIN)/fila-cluster up $(ARGS)

unit: .venv/.unit
	$(PYTEST) tests/unit/worker tests/unit/router tests/unit/protocol tests/unit/process tests/unit/admission tests/unit/client \
		--ignore tests/unit/worker/log/kafka $(ARGS)

check: lint unit
	$(PYTEST) tests/architecture tests/unit/cli tests/unit/analysis tests/unit/dashboard tests/unit/observer $(ARGS)

test: .venv/.tested
	$(PYTEST) -m "not whole" $(ARGS)

test-all: .venv/.tested
	$(PYTEST) -m "not benchmark" $(ARGS)

bench-check: .venv/.tested
	$(PYTEST) -m benchmark tests/benchmarks $(ARGS)

# make test has clients reach workers directly. Left out: what reaches both ways by itself, and what depends on neither. Faults are first:
# their files take longest.
routed: .venv/.tested
	FILA_DIRECT=0 $(PYTEST) \
		tests/faults tests/integration/client tests/integration/policy \
		--ignore tests/faults/test_direct_ways.py --ignore tests/faults/test_reshard.py --ignore tests/faults/test_backups.py --ignore tests/faults/test_damage.py --ignore tests/faults/test_disk.py \
		--ignore tests/faults/test_hung_processes.py --ignore tests/integration/client/test_bad_input.py \
		--ignore tests/integration/client/outages/test_outage.py --ignore tests/integration/policy/test_hostile_scripts.py $(ARGS)

# Tests whose promise differs for such queues are named in tests/support/partitioned.py.
partitioned: .venv/.tested
	$(PYTEST) --partitions 4 tests/integration/client tests/integration/policy $(ARGS)

lint: .venv/.tested
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/python .ci/make_blocking.py --check
	$(BIN)/python .ci/make_docs.py --check
	$(BIN)/mypy
	$(BIN)/mypy .ci/make_blocking.py .ci/make_docs.py .ci/make_site.py .ci/environments.py .ci/release.py
	$(BIN)/lint-imports

format: .venv/.unit
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

blocking: .venv/.unit
	$(BIN)/python .ci/make_blocking.py

docs: .venv/.unit
	$(BIN)/python .ci/make_docs.py

site: .venv/.site
	rm -rf build/site
	$(BIN)/python .ci/make_site.py build/site
	@echo "built: open build/site/index.html"

bench: .venv/.tested
	$(BIN)/python -m benchmarks all $(ARGS)

release-check: .venv/.release
	$(BIN)/python .ci/release.py

# A stamp is made again when it is older than its sources. The package is installed in place, so its modules are no sources of the stamp.
.venv/bin/python:
	@test -n "$(PYTHON)" || { echo "fila-cluster needs Python 3.11 or later: install it, or name it with make PYTHON=…" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"

.venv/.installed: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --editable ".[dashboard]"
	@touch $@

.venv/.unit: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --editable . --group dev
	@touch $@

.venv/.site: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --editable ".[site]"
	@touch $@

.venv/.tested: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --editable ".[dashboard,spark,locust,peers,backup,hosts,reload,outbox,celery,dramatiq,django,site]" --group dev --group bench --group deploy
	@touch $@

.venv/.release: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --group release
	@touch $@

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
