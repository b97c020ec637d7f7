# `make demo` and `make test` set up .venv by themselves; a second call finds it ready.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
READY := $(VENV)/.ready
BIN := $(VENV)/bin
# TensorFlow's start-up chatter hides the lines that matter.
export TF_CPP_MIN_LOG_LEVEL ?= 3

.PHONY: demo test test-slow test-benchmarks test-sweep check lint wheel-test clean

$(READY): setup.cfg pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed: install python3.11 (and python3-venv on Debian)"; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; $(PYTHON) is older: call make PYTHON=/path/to/python3.11"; exit 2; }
	@sh .ci/make_venv.sh $(PYTHON) $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[onnx,translation,test,dev]'
	@touch $@

demo: $(READY)
	$(BIN)/python examples/demo.py --out runs/demo

test: $(READY)
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m 'not slow and not benchmarks and not sweep'

# XLA as users have it; the quick tests leave LLVM's passes out (tests/conftest.py).
test-slow: $(READY)
	XLA_FLAGS= $(BIN)/python -m pytest -q -n 2 --dist worksteal -m slow

test-benchmarks: $(READY)
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m 'benchmarks and not slow'

# Hundreds of commands with bad input.
test-sweep: $(READY)
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m sweep

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

check: lint test

wheel-test: $(READY)
	rm -rf build dist $(VENV)-wheel
	$(BIN)/python -m build --wheel --outdir dist .
	sh .ci/make_venv.sh $(PYTHON) $(VENV)-wheel
	$(VENV)-wheel/bin/pip install --quiet "$$(ls dist/*.whl)[onnx,translation,test]"
	cd $$(mktemp -d) && cp -r $(addprefix $(CURDIR)/,tests benchmarks examples setup.cfg README.md) . && \
	$(CURDIR)/$(VENV)-wheel/bin/python -m pytest -q -n 2 -m 'not slow and not sweep' \
	    --ignore tests/test_packaging.py --ignore tests/test_structure.py --ignore tests/test_setup.py

clean:
	rm -rf $(VENV) $(VENV)-wheel build dist runs *.egg-info
