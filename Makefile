# Every target sets up what it needs: a machine with Python 3.11+, make and a package index is enough.

PYTHON ?= python3
JOBS ?= 2
EXTRAS ?= cpu
PIP_FLAGS ?= -qq --disable-pip-version-check --retries 10

comma := ,
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install $(PIP_FLAGS) -c constraints.txt
SOURCES := src tests docs $(wildcard bench) $(wildcard examples)

# What the oldest versions must pass: all that needs no framework but onnxruntime. Defects of the oldest onnxruntime are
# listed in tests/known_failures.toml.
OLDEST_TESTS := $(addprefix tests/test_,$(addsuffix .py,model roundtrip normalize passes surgery grad optim record \
  loop check cli diff inspect))

# Frameworks use every core they see and then wait for one another; the tests give each worker one.
QUIET := OMP_NUM_THREADS=1 TF_CPP_MIN_LOG_LEVEL=3 JAX_PLATFORMS=cpu

.DEFAULT_GOAL := help
.PHONY: help demo web-demo test lint format wheel oldest oldest-imports coverage bench docs nightly clean

help: ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# Three steps, each with a stamp: a download that fails half-way is taken up where it stopped.
$(VENV)/.core: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing sardonyx into $(VENV)"
	@$(PIP) -e ".[dev]"
	@touch $@

$(VENV)/.engines: $(VENV)/.core
	@echo "installing torch, jax and tensorflow into $(VENV): some minutes"
	@$(PIP) -e ".[torch]"
	@$(PIP) -e ".[jax,flax]" "equinox>=0.11"
	@$(PIP) -e ".[tensorflow,tensorboard]"
	@touch $@

# Sources of the importers' sweeps: large, and needed by nobody else. torch is there already.
$(VENV)/.nightly: $(VENV)/.engines
	@$(PIP) catboost "dask[dataframe]" dm-haiku pypmml ray sklearn2pmml transformers
	@$(PIP) openvino iree-base-compiler iree-base-runtime tract
	@$(PIP) --no-deps timm torchvision
	@touch $@

$(VENV)/.docs: $(VENV)/.core
	@$(PIP) -e ".[docs]"
	@touch $@

demo: $(VENV)/.core ## fine-tune a model on stock onnxruntime and serve it
	@$(BIN)/python examples/demo.py

web-demo: $(VENV)/.core ## build and serve a page that learns digits in the browser
	@$(BIN)/python examples/web_digits.py

test: $(VENV)/.engines ## everything that runs on each change
	$(QUIET) $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal

lint: $(VENV)/.core ## style, architecture rules, types
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy

format: $(VENV)/.core ## rewrite the sources in the project's form
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

wheel: $(VENV)/.core ## build dist/ and try the wheel in an environment of its own, with [cpu] alone
	@rm -rf dist build/wheel
	@$(BIN)/python -m build --outdir dist . > /dev/null
	@$(PYTHON) -m venv build/wheel
	@build/wheel/bin/python -m pip install $(PIP_FLAGS) -c constraints.txt "$$(ls dist/*.whl)[cpu]"
	@build/wheel/bin/python tests/package/installed.py README.md

oldest: ## the oldest versions that pyproject.toml allows; EXTRAS=cpu,jax adds those of an extra
	@rm -rf build/oldest && $(PYTHON) -m venv build/oldest
	@$(PYTHON) tests/package/oldest.py $(subst $(comma), ,$(EXTRAS)) > build/oldest/versions.txt
	@build/oldest/bin/python -m pip install $(PIP_FLAGS) -c build/oldest/versions.txt ".[$(EXTRAS)]" pytest pytest-xdist
	@$(QUIET) build/oldest/bin/python tests/package/smoke.py
	@$(QUIET) build/oldest/bin/python -m pytest -q -n $(JOBS) --oldest $(OLDEST_TESTS)

OLDEST_IMPORTS := $(addprefix tests/test_,$(addsuffix .py,from_keras from_keras_training from_tensorflow \
  from_tensorflow_1 from_tflite to_keras))

oldest-imports: ## the importers of TensorFlow and Keras, on the oldest of both that pyproject.toml allows
	@rm -rf build/oldest-imports && $(PYTHON) -m venv build/oldest-imports
	@$(PYTHON) tests/package/oldest.py tensorflow | grep -E "^(tensorflow|keras)" > build/oldest-imports/versions.txt
	@build/oldest-imports/bin/python -m pip install $(PIP_FLAGS) -c build/oldest-imports/versions.txt \
	  ".[cpu,jax,flax,tflite]" pytest pytest-xdist
	@$(QUIET) build/oldest-imports/bin/python -m pytest -q -n $(JOBS) $(OLDEST_IMPORTS)

coverage: $(VENV)/.engines ## the tests, with a page of the lines that they reach in htmlcov/
	$(QUIET) $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal --cov --cov-report=html --cov-report=term:skip-covered

bench: $(VENV)/.engines ## one script per claim; prints ratios measured in the same run
	@set -e; for script in bench/*.py; do echo "== $$script"; $(BIN)/python $$script; done

docs: $(VENV)/.docs ## build the site into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

nightly: $(VENV)/.nightly ## the slow tests, then every sweep with its table
	@failed=; \
	$(QUIET) $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal -m "slow or nightly" || failed="$$failed pytest"; \
	for script in $$(grep -l __main__ tests/sweeps/*.py); do \
	  sweep=tests.sweeps.$$(basename $$script .py); \
	  echo "== $$sweep"; $(QUIET) $(BIN)/python -m $$sweep || failed="$$failed $$sweep"; \
	done; \
	if [ -n "$$failed" ]; then echo "failed:$$failed"; exit 1; fi

clean: ## remove what the targets made, the environment too
	rm -rf $(VENV) site out build dist htmlcov .mypy_cache .pytest_cache .ruff_cache
