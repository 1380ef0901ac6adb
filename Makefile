# make demo | test | lint | bench | load | cluster | scale: each sets up .venv first, from python3 alone or faster with uv.

PYTHON ?= python3
VENV ?= .venv
SOAK_MINUTES ?= 20
OUTAGE_S ?= 10
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help demo test lint bench load cluster scale requirements clean

help:
	@echo "make demo   train on real digits and read the summary"
	@echo "make test   lint, types, contracts and every test, real servers included"
	@echo "make lint   format, lint, types and import contracts only"
	@echo "make bench  print the overhead tables"
	@echo "make load   put it under loads and faults, and count (SOAK_MINUTES=20 OUTAGE_S=10)"
	@echo "make cluster  run deploy/cluster with real Kafka and OpenSearch, kill its parts, and count; needs Java"
	@echo "make scale  simulate 1 to 4,096 ranks: what each costs, and one run of all of them"

demo: $(READY)
	$(BIN)/python examples/train_digits.py

# Each file of tests in one process, for what its tests share; `pytest tests/...` by hand is one alone.
# A process that crashed is not replaced: pytest would wait for the tests that it had.
test: lint
	$(BIN)/python -m pytest -n logical --maxprocesses 8 --dist loadfile --max-worker-restart 0

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: $(READY)
	@for table in spans foreign_spans instruments overhead frameworks agent_cost encoder readings sensors \
			profile_window trace_encoding trace_reading gpu_time loading; do $(BIN)/python tests/bench/$$table.py || exit 1; done

load: $(READY)
	@for load in rate.py "rate.py --keep-every 100" "rate.py --keep-every 100 --busy 2" \
			"rate.py --ranks 8 --rate 1000 --seconds 30" \
			at_once.py "at_once.py --threads 64" "outage.py --seconds $(OUTAGE_S)" dead_server.py \
			kills.py forks.py interrupts.py collector_kills.py "soak.py --minutes $(SOAK_MINUTES)"; do \
		$(BIN)/python tests/load/$$load || exit 1; done

cluster: $(READY)
	@if command -v uv >/dev/null 2>&1; then \
		uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements/cluster.txt; \
	else \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/cluster.txt; \
	fi
	$(BIN)/python -m pytest -p no:randomly -o faulthandler_timeout=600 tests/unit/deploy/test_cluster.py \
		tests/cluster/files.py tests/cluster/sampling.py tests/cluster/nodes.py tests/cluster/kills.py

scale: $(READY)
	$(BIN)/python tests/scale/cost.py
	$(BIN)/python tests/scale/wide_run.py

# Built anew when the pins or the package's metadata change; otherwise this costs nothing.
$(READY): requirements/dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, $(PYTHON) is " + sys.version.split()[0])'
	@if command -v uv >/dev/null 2>&1; then \
		uv venv --quiet --allow-existing --python "$(PYTHON)" $(VENV) && \
		uv pip install --python $(BIN)/python --require-hashes -r requirements/dev.txt && \
		uv pip install --python $(BIN)/python --no-deps --no-build-isolation --quiet -e .; \
	else \
		$(PYTHON) -m venv $(VENV) && \
		$(BIN)/python -m pip install --disable-pip-version-check --require-hashes -r requirements/dev.txt && \
		$(BIN)/python -m pip install --disable-pip-version-check --no-deps --no-build-isolation --quiet -e .; \
	fi
	@touch $@

requirements:
	uv pip compile pyproject.toml --group dev --universal --python-version 3.11 --generate-hashes \
		--quiet --custom-compile-command "make requirements" -o requirements/dev.txt
	uv pip compile --group cluster --constraints requirements/dev.txt --universal --python-version 3.11 \
		--generate-hashes --quiet --custom-compile-command "make requirements" -o requirements/cluster.txt
	uv pip compile --group mlflow --universal --python-version 3.11 --generate-hashes \
		--quiet --custom-compile-command "make requirements" -o requirements/mlflow.txt
	uv pip compile --group trackio --universal --python-version 3.11 --generate-hashes \
		--quiet --custom-compile-command "make requirements" -o requirements/trackio.txt
	uv pip compile --group wandb --constraints requirements/dev.txt --universal --python-version 3.11 \
		--generate-hashes --quiet --custom-compile-command "make requirements" -o requirements/wandb.txt

clean:
	rm -rf $(VENV) otel-runs
