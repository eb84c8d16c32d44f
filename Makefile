# Each target works on a fresh Debian machine: the first one run makes .venv from requirements.lock.

VENV  := .venv
LEDGER := compare
UNIT := tests/test_tidy.py tests/unit tests/models tests/contracts tests/simulation tests/cli
BIN   := $(VENV)/bin
READY := $(VENV)/.ready
# More workers than cores, for many tests wait; tests/rings/order.py says which tests stay in one of them.
# A worker that ends by itself fails the run with the name of its test: with another in its place the run would never end.
PYTEST := $(BIN)/python -m pytest --dist loadscope --no-loadscope-reorder --max-worker-restart=0
SERVERS := s3 kafka tla postgres redis armada network prometheus browser

# Each of the hundreds of processes that tests start would compile all sources anew, and pytest all of its own.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup java s3 kafka tla postgres redis armada network prometheus browser versitygw yarn demo unit test test-full ledger lint check docs pictures format bench soak chaos proof lock dist fresh clean

help: ## what there is to make
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

setup: $(READY) java ## the virtual environment and Java, ready to use
	@$(BIN)/millpond warm

# Each stamp is written when what it stands for is ready, so that a second run starts nothing.
$(READY): requirements.lock pyproject.toml
	@tools/setup python

$(VENV)/.demo: requirements-demo.lock pyproject.toml
	@tools/setup demo

$(VENV)/.tests: requirements.lock pyproject.toml tools/spark_archive.py tools/s3_server.sha256 tools/kafka.sha256 tools/tla.sha256 tools/armada.txt
	@tools/setup tests

java:
	@tools/setup java

$(SERVERS): $(VENV)/.tests

versitygw yarn: $(VENV)/.tests
	@tools/setup $@

demo: $(VENV)/.demo ## real flights enriched with the weather of their hour, by Spark; CONSOLE=1 leaves the console open
	@$(BIN)/millpond demo
	@$(if $(CONSOLE),$(BIN)/millpond console demo/pond)

unit: $(READY) ## ring 1: style, arrows, and the tests that need no process and little time
	@$(BIN)/ruff check -q
	@$(BIN)/ruff format -q --check
	@$(BIN)/lint-imports --no-cache >/dev/null || $(BIN)/lint-imports --no-cache
	@$(PYTEST) -n 2 -m unit $(UNIT)

test: $(SERVERS) ## ring 2: ring 1, every real server once, kills at sampled steps (TEST_SEED=N repeats a sample)
	@$(BIN)/millpond warm >/dev/null
	@$(PYTEST) -n 6 -m "not full" --ledger=$(LEDGER) --again=3

test-full: $(SERVERS) versitygw yarn ## ring 3: every moment of every kill, every parameter, large memory, long machines
	@TEST_RING=full $(PYTEST) -n 3 --timeout=1800 -o faulthandler_timeout=1700

ledger: ## ring 2, and what each file of it costs into tests/durations.json
	@HYPOTHESIS_PROFILE=ci $(MAKE) test LEDGER=write

lint: $(READY) ## style, types, and the arrows between the parts
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

check: lint test ## what CI runs, with examples drawn anew

docs: $(READY) ## the generated pages anew: docs/reference/, docs/charts/, docs/benchmarks.md; what `millpond warm` compiles
	@$(BIN)/python tools/cli_reference.py --write
	@$(BIN)/python tools/error_reference.py --write
	@$(BIN)/python tools/keyspaces.py --write
	@$(BIN)/python tools/api_reference.py --write
	@$(BIN)/python tools/limits_page.py --write
	@$(BIN)/python tools/routes_page.py --write
	@PYTHONPATH=. $(BIN)/python bench/_results.py --write
	@PYTHONPATH=. $(BIN)/python tools/charts.py --write
	@PYTHONPATH=. $(BIN)/python tools/benchmarks_page.py --write
	@$(BIN)/python tools/kernels.py --write
	@$(BIN)/python tools/protocols.py --write

pictures: browser $(VENV)/.demo ## docs/pictures/console-*.webp anew: pages of the console in Chromium
	@PYTHONPATH=. $(BIN)/python tools/pictures.py --write

format: $(READY) ## rewrite the code in the project's style
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

# The soak has a target of its own; two rivals need environments of their own; and one file compares runs.
CLAIMS := $(filter-out bench/soak.py bench/merge_delta.py bench/workflows_dbos.py bench/compare.py,$(wildcard bench/[a-z]*.py))

bench: $(READY) java ## every benchmark, one after another, into bench/results/
	@for claim in $(CLAIMS); do echo "== $$claim"; PYTHONPATH=. $(BIN)/python $$claim || exit 1; done

soak: $(READY) ## three nodes at work for MINUTES=30: every answer right, nothing grows
	@PYTHONPATH=. $(BIN)/python bench/soak.py --minutes $(or $(MINUTES),30)

chaos: $(READY) ## three nodes under faults drawn from SEED for MINUTES=10: nothing acknowledged is lost
	@PYTHONPATH=. $(BIN)/python -m tests.harness.chaos --minutes $(or $(MINUTES),10) $(if $(SEED),--seed $(SEED))

proof: $(READY) java ## the demo's pipeline while server, worker and driver are killed KILLS=200 times, by SEED
	@PYTHONPATH=. $(BIN)/python -m tests.harness.proof --kills $(or $(KILLS),200) $(if $(SEED),--seed $(SEED))

lock: $(READY) ## requirements.lock and requirements-demo.lock anew, from pyproject.toml
	@tools/lock

dist: $(READY) ## sdist and wheel in dist/, and the wheel tried in an environment of its own
	@$(BIN)/python tools/dist.py

fresh: ## both README commands in a bare Debian (SUITE=trixie for the newest Python), as before a release
	@tools/fresh $(or $(SUITE),bookworm)

clean: ## what was built, but no data
	@rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +
