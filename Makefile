# Two commands do everything: `make run` and `make test`. Each installs what it needs into .venv first.
# PYTHON picks the interpreter the environment is made with (3.11 or later).

PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do command -v $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
RUN := $(VENV)/.stamp-run
DEV := $(VENV)/.stamp-dev
LIVE := $(VENV)/.stamp-live
ARGS ?=
# Tests that are asked for more rounds may take longer than any other test (pyproject.toml).
NO_LIMIT := -o faulthandler_timeout=0

.DEFAULT_GOAL := help
.PHONY: help setup run demo spark-demo format lint types test check crash simulate split-test soak interop fuzz bench bench-shapes bench-topics bench-spark bench-pairs image image-test clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 18

$(BIN)/python:
	tools/make-venv.sh "$(PYTHON)" $(VENV)

NATIVE := setup.py $(wildcard protocol/native/*.[chp]* storage/native/*.c broker/native/*.[ch])

$(RUN): pyproject.toml $(NATIVE) | $(BIN)/python
	@echo 'Installing the broker into $(VENV). The AMQP engine is compiled: this takes a minute or two, once.'
	$(BIN)/python -m pip install --disable-pip-version-check --editable .
	@touch $@

$(DEV): pyproject.toml connector/pyproject.toml $(NATIVE) | $(BIN)/python
	@echo 'Installing the broker and its tests into $(VENV). The AMQP engine is compiled: this takes a minute or two, once.'
	$(BIN)/python -m pip install --disable-pip-version-check --editable '.[dev]' --editable connector
	@touch $(RUN) $@

$(LIVE): $(DEV)
	$(BIN)/python -m pip install --disable-pip-version-check --editable '.[dev,live]' --editable connector
	@touch $@

setup: $(DEV) ## the environment for development

run: $(RUN) ## the broker with the sample configuration; ARGS="--amqp-port 0 …" adds options
	$(BIN)/partibus serve --config docker/config.json --data-dir data --show-connections $(ARGS)

demo: $(DEV) ## while `make run` runs: send and receive with the Azure SDK, and see the partitions
	$(BIN)/python tools/demo.py $(ARGS)

spark-demo: $(DEV) ## orders through a broker and a local Spark, and back: needs Java 17 or later
	@command -v java >/dev/null || { echo 'Spark needs Java 17 or later: apt-get install default-jre-headless' >&2; exit 1; }
	$(BIN)/python tools/spark_demo.py $(ARGS)

format: $(DEV) ## ruff rewrites the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: $(DEV) ## ruff only looks
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(DEV) ## mypy --strict
	$(BIN)/mypy

test: $(DEV) ## every test, two at a time; ARGS="-k name" picks some
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder $(ARGS)

check: lint types test ## what CI runs

crash: $(DEV) ## kill -9 under load, all 50 rounds (make test runs 6)
	PARTIBUS_CRASH_ROUNDS=$${PARTIBUS_CRASH_ROUNDS:-50} $(BIN)/python -m pytest $(NO_LIMIT) tests/crash $(ARGS)

simulate: $(DEV) ## the property tests from a new seed, with twenty times the examples (make test runs the same few each time), and Spark with 50 rounds of kills, 1,000,000 messages and 1,000 batches; more than an hour
	HYPOTHESIS_PROFILE=random MODEL_SEED=$${MODEL_SEED:-$$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')} MODEL_EXAMPLES=$${MODEL_EXAMPLES:-5000} \
		PARTIBUS_SPARK_ROUNDS=50 PARTIBUS_SPARK_DRIVERS=10 PARTIBUS_SPARK_MESSAGES=1000000 PARTIBUS_SPARK_KILLS_EVERY_S=10 PARTIBUS_SPARK_BATCHES=1000 \
		$(BIN)/python -m pytest $(NO_LIMIT) tests/property tests/connector/test_kills.py tests/connector/test_end_to_end.py \
		tests/connector/test_many_batches.py $(ARGS)

split-test: $(DEV) ## the interop and crash suites with the partitions in a process of their own
	PARTIBUS_PARTITION_PROCESS=true $(BIN)/python -m pytest tests/interop tests/crash $(ARGS)

soak: $(DEV) ## half an hour of mixed clients and restarts, and work on 1,000,000 messages: nothing is lost, nothing grows, nobody waits long; plots in build/soak
	PARTIBUS_SOAK_MINUTES=$${PARTIBUS_SOAK_MINUTES:-30} PARTIBUS_SOAK_P99_MS=$${PARTIBUS_SOAK_P99_MS:-20} \
		PARTIBUS_SOAK_MESSAGES=$${PARTIBUS_SOAK_MESSAGES:-1000000} $(BIN)/python -m pytest $(NO_LIMIT) -s tests/soak $(ARGS)

interop: $(LIVE) ## unchanged clients of other makers against the broker, and the live suite of azure-servicebus (needs root; half an hour)
	PARTIBUS_OVERLOAD_SECONDS=30 $(BIN)/python -m pytest tests/interop $(ARGS)
	$(BIN)/python -m tests.live.python_suite

fuzz: $(DEV) ## hostile bytes, for as long as you like: ARGS="--seconds 600"
	$(BIN)/python -m tests.fuzz.run $(ARGS)

bench: $(DEV) ## the figures of docs/benchmarks.md, one line of JSON each
	$(BIN)/python -m tests.bench.run $(ARGS)

bench-shapes: $(DEV) ## messages of all shapes, beside other brokers: ARGS="--peer name=amqp://… --peer-pid name=…"
	$(BIN)/python -m tests.bench.shapes $(ARGS)

bench-topics: $(DEV) ## topics and subscriptions, beside other brokers: ARGS="--peer rabbitmq=amqp://… --peer-pid rabbitmq=…"
	$(BIN)/python -m tests.bench.topics $(ARGS)

bench-spark: $(DEV) ## Spark reads, writes and streams, beside a Kafka broker from Maven Central: ARGS="--only partibus"
	$(BIN)/python -m tests.bench.spark $(ARGS)

bench-pairs: $(DEV) ## two versions of the broker, in alternating pairs of runs: ARGS="--before HEAD~1 --shape plain"
	$(BIN)/python -m tests.bench.pairs $(ARGS)

image: ## the container image
	docker build --tag partibus:latest .

image-test: $(DEV) ## build the image with Docker, Podman or Buildah, run it, kill it, and find every acknowledged message
	$(BIN)/python -m pytest tests/image $(ARGS)

clean: ## everything that was made; the data folder stays
	rm -rf $(VENV) .cache build dist *.egg-info protocol/*.so broker/*/*.so .mypy_cache .ruff_cache .pytest_cache .hypothesis tests/interop/js/node_modules
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
