# `make help` lists the targets. Each creates the environment that it needs, from the locks in requirements/.

VENV = .venv
BENCH_VENV = .bench-venv
# Programs are called by their path, so the environment need not be activated.
BIN = $(VENV)/bin
# Tests to run, or options for pytest: make test TESTS="tests/launcher -k quantities"
TESTS =
# Number of processes that share the tests, module by module. Many modules of `make test` wait, so six processes keep two cores busy. The
# slow tests and those in containers start whole runs, with several TensorFlow processes of 0.4 GB each.
JOBS = 3
test: JOBS = 6
test-slow: JOBS = 4
KUBERNETES_JOBS = 6
PYTEST = $(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder
# Options for the benchmark: make bench BENCH="--quick --json"
BENCH =
# make lock UPGRADE=--upgrade takes the newest versions; without it only the necessary changes are made.
UPGRADE =
COMPILE = $(BIN)/uv pip compile --quiet --universal --generate-hashes --python-version 3.11 --no-header $(UPGRADE)

.DEFAULT_GOAL = help
.PHONY: help env demo test test-slow test-docker test-kubernetes lint fmt lock golden bench clean

help: ## show this list
	@echo "make TARGET, where TARGET is"
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-17s %s\n", $$1, $$2 }'

env: $(VENV)/.made ## create .venv with the commands launcher and trainer

$(VENV)/.made: requirements/environment.sh requirements/uv.txt requirements/dev.txt requirements/keras2.txt pyproject.toml
	@sh requirements/environment.sh $(VENV) requirements/dev.txt project
	@touch $@

$(BENCH_VENV)/.made: requirements/environment.sh requirements/uv.txt requirements/bench.txt
	@echo "The benchmark's baselines (Ray, PyTorch with its CUDA libraries) take 7 GB in $(BENCH_VENV)"
	@sh requirements/environment.sh $(BENCH_VENV) requirements/bench.txt
	@touch $@

demo: env ## train on 1 chief, 1 parameter server and 2 workers, here, to at least 97 % accuracy
	$(BIN)/launcher up examples/mnist-ps.yaml --fresh
	@$(BIN)/launcher status mnist-ps --json | $(BIN)/python -c 'import json, sys; \
	accuracy = json.load(sys.stdin)["metrics"]["accuracy"]; \
	print(f"Accuracy on held-out digits: {accuracy:.1%} (at least 97% was expected)"); \
	sys.exit(accuracy < 0.97)'
	@echo "See its curves, graph and images: $(BIN)/launcher tensorboard mnist-ps"

test: env ## run all but the slow tests
	$(PYTEST) -m "not slow and not docker and not kubernetes" -n $(JOBS) $(TESTS)

test-slow: env ## run the slow tests: whole runs that fail and recover, every example, README commands
	$(PYTEST) -m "slow and not docker and not kubernetes" -n $(JOBS) $(TESTS)

test-docker: env ## run the tests on the Docker engine that the docker command uses
	$(PYTEST) tests/e2e/docker -m docker -n $(JOBS) $(TESTS)

test-kubernetes: env ## run the tests on the cluster that KUBECONFIG names; docs/testing.md says what it needs
	$(PYTEST) tests/e2e/kubernetes -m kubernetes -n $(KUBERNETES_JOBS) $(TESTS)

lint: env ## check formatting, ruff's rules and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

fmt: env ## format the code and apply ruff's fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lock: env ## write the locks in requirements/ again from pyproject.toml
	echo uv | $(COMPILE) - -o requirements/uv.txt
	$(COMPILE) pyproject.toml -o requirements/launcher.txt
	$(COMPILE) --extra trainer pyproject.toml -o requirements/trainer.txt
	$(COMPILE) --extra gpu pyproject.toml -o requirements/gpu.txt
	$(COMPILE) --group image --constraint requirements/trainer.txt -o requirements/image.txt
	$(COMPILE) --group image-gpu --constraint requirements/gpu.txt -o requirements/image-gpu.txt
	$(COMPILE) --extra trainer --group dev pyproject.toml -o requirements/dev.txt
	echo 'tf-keras==2.21.*' | $(COMPILE) --no-deps - -o requirements/keras2.txt
	$(COMPILE) --group bench -o requirements/bench.txt

golden: env ## write the generated files again: the JSON Schema, docs/spec.md, compose/ and k8s/, the messages that tests compare
	$(BIN)/python -m launcher.spec.schema --write
	$(BIN)/python -m launcher.render.golden --write
	$(BIN)/python -m tests.launcher.spec.test_invalid --write
	$(BIN)/python -m tests.launcher.tfjob.test_cases --write
	$(BIN)/python -m tests.golden_messages --write

bench: env $(BENCH_VENV)/.made ## compare speed and time to the first step with other launchers and loops
	$(BIN)/python -m benchmarks.run $(BENCH)

clean: ## remove the files that make and benchmarks/gpu.sh have created; runs/ stays
	rm -rf $(VENV) $(BENCH_VENV) .gpu-venv gpu.json .hypothesis .mypy_cache .pytest_cache .ruff_cache .cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	@if [ -d runs ]; then echo "runs/ stays: it holds your checkpoints and logs"; fi
