# make demo | test | check | lint | bench | load | cluster | scale | pictures | docs: each sets up what it needs in .venv first,
# from python3 alone or faster with uv.

# Otherwise each of the many processes would compile torch anew.
unexport PYTHONDONTWRITEBYTECODE
PYTHON ?= python3
VENV ?= .venv
SOAK_MINUTES ?= 20
OUTAGE_S ?= 10
BIN := $(VENV)/bin
CHECK_BIN := $(VENV)-check/bin
# Stamps of installed environments: the examples, the tests, what only `make check` needs, the site's generator.
DEMO := $(VENV)/.demo
DEV := $(VENV)/.dev
CHECK := $(VENV)-check/.check
SITE := $(VENV)-docs/.docs
# At most eight processes: each collects all tests.
JOBS := $(shell cores=$$(nproc); echo $$((cores < 8 ? cores : 8)))
# Each file of tests runs in one process, for what its tests share.
# A process that crashed is not replaced: pytest would wait for the tests that it had.
PYTEST := -m pytest -n $(JOBS) --dist loadfile --max-worker-restart 0

.PHONY: help demo test check lint bench load cluster scale pictures docs requirements clean

help:
	@echo "make demo   train on real digits and read the summary"
	@echo "make test   every fast test that needs nothing but Python, of long tables a sample"
	@echo "make check  lint, types, contracts and every test, real servers, browser and frameworks included"
	@echo "make lint   format, lint, types and import contracts only"
	@echo "make bench  print the overhead tables"
	@echo "make load   put it under loads and faults, and count (SOAK_MINUTES=20 OUTAGE_S=10)"
	@echo "make cluster  run deploy/cluster with real Kafka and OpenSearch, kill its parts, and count; needs Java"
	@echo "make pictures  make the pictures of README and docs anew, from real runs; needs Chromium and a quiet machine"
	@echo "make docs   build the documentation site into build/site, and fail on a broken link"
	@echo "make scale  simulate 1 to 4,096 ranks: what each costs, and one run of all of them"

demo: $(DEMO)
	$(BIN)/python examples/train_digits.py

test: $(DEV)
	$(BIN)/python $(PYTEST) --tests quick

# The servers are built at low priority while the quick tests run.
check: $(DEV) $(CHECK)
	@nice -n 19 $(BIN)/python tests/servers/build.py & servers=$$!; \
	{ $(MAKE) --no-print-directory lint test && wait $$servers; } || { kill $$servers 2>/dev/null; exit 1; }
	$(CHECK_BIN)/python $(PYTEST) --tests rest

lint: $(DEV)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: $(DEV) $(CHECK)
	@for table in spans foreign_spans instruments overhead agent_cost encoder readings sensors \
			profile_window trace_encoding trace_reading gpu_time loading; do $(BIN)/python tests/bench/$$table.py || exit 1; done
	$(CHECK_BIN)/python tests/bench/frameworks.py

load: $(DEV)
	@for load in rate.py "rate.py --trace-every 100" "rate.py --keep-every 100 --busy 2" \
			"rate.py --ranks 8 --rate 1000 --seconds 30" \
			at_once.py "at_once.py --threads 64" "outage.py --seconds $(OUTAGE_S)" dead_server.py \
			kills.py forks.py interrupts.py collector_kills.py "soak.py --minutes $(SOAK_MINUTES)"; do \
		$(BIN)/python tests/load/$$load || exit 1; done

cluster: $(DEV)
	$(call install,$(VENV),--require-hashes -r requirements/cluster.txt)
	$(BIN)/python -m pytest -p no:randomly -o faulthandler_timeout=600 tests/unit/deploy/test_cluster.py \
		tests/cluster/files.py tests/cluster/sampling.py tests/cluster/nodes.py tests/cluster/kills.py

scale: $(DEV)
	$(BIN)/python tests/scale/cost.py
	$(BIN)/python tests/scale/wide_run.py

pictures: $(CHECK)
	$(CHECK_BIN)/python tests/pictures.py

docs: $(SITE)
	$(VENV)-docs/bin/python tests/site_pages.py
	$(VENV)-docs/bin/zensical build --strict
	@echo "open build/site/index.html"

# $(call install,ENVIRONMENT,OPTIONS) installs with uv, or with pip where there is no uv.
install = if command -v uv >/dev/null 2>&1; then uv pip install --quiet --python $(1)/bin/python $(2); \
	else $(1)/bin/python -m pip install --quiet --disable-pip-version-check $(2); fi
make_venv = if command -v uv >/dev/null 2>&1; then uv venv --quiet --allow-existing --python "$(2)" $(1); else "$(2)" -m venv $(1); fi

# Each is made anew when its pins or the package's metadata change; otherwise this costs nothing.
$(DEMO): requirements/demo.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, $(PYTHON) is " + sys.version.split()[0])'
	@$(call make_venv,$(VENV),$(PYTHON))
	$(call install,$(VENV),--require-hashes -r requirements/demo.txt)
	@$(call install,$(VENV),--no-deps --no-build-isolation -e .)
	@touch $@

$(DEV): $(DEMO) requirements/dev.txt
	$(call install,$(VENV),--require-hashes -r requirements/dev.txt)
	@touch $@

# The packages of .venv are visible in it, so that torch is installed once.
$(CHECK): $(DEV) requirements/check.txt
	@$(call make_venv,$(VENV)-check,$(BIN)/python)
	@$(BIN)/python -c 'import site, sys; print("import site; site.addsitedir(%r)" % site.getsitepackages()[0])' \
		> "$$($(CHECK_BIN)/python -c 'import site; print(site.getsitepackages()[0])')/base.pth"
	$(call install,$(VENV)-check,--no-deps --require-hashes -r requirements/check.txt)
	@$(call install,$(VENV)-check,--no-deps --no-build-isolation -e .)
	@touch $@

$(SITE): requirements/docs.txt
	@$(call make_venv,$(VENV)-docs,$(PYTHON))
	$(call install,$(VENV)-docs,--require-hashes -r requirements/docs.txt)
	@touch $@

# $(call lock,NAME,OPTIONS) pins a dependency group with hashes.
lock = uv pip compile $(2) --universal --python-version 3.11 --generate-hashes --quiet \
	--custom-compile-command "make requirements" -o requirements/$(1).txt

requirements:
	$(call lock,dev,pyproject.toml --group dev)
	$(call lock,demo,pyproject.toml --group demo --constraints requirements/dev.txt)
	$(call lock,check,--group check --constraints requirements/dev.txt \
		$$(sed -n 's/^\([a-z0-9][a-z0-9._-]*\)==.*/--no-emit-package \1/p' requirements/dev.txt))
	$(call lock,cluster,--group cluster --constraints requirements/dev.txt)
	$(call lock,mlflow,--group mlflow)
	$(call lock,trackio,--group trackio)
	$(call lock,wandb,--group wandb --constraints requirements/dev.txt)
	$(call lock,docs,--group docs)

clean:
	rm -rf $(VENV) $(VENV)-check $(VENV)-docs build/pages build/site .cache otel-runs
