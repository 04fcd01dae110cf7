# Every target makes the environment it needs in .venv; a second run installs nothing.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Modules are compiled when they are first imported: few of PyTorch's ever are.
INSTALL := $(BIN)/python -m pip --disable-pip-version-check install --quiet --no-compile
# With the build tools of .venv itself, which all of our distributions share.
EDIT := PYTHONWARNINGS=ignore:Editable $(INSTALL) --no-build-isolation
TRAIN_ARGS ?=
# One worker more than the two cores that the suite is made for: tests also wait.
TEST_ARGS ?= -n 3 --dist worksteal
FUZZ_FRAMES ?= 10000000
FUZZ_SEED ?= 1
NATIVE := $(wildcard *.py stack/*/native/* stack/comm/engine/native/* stack/bridge/torch/native/* plugins/*/*.py plugins/*/src/*/native/*)

# The tests start hundreds of processes, which would compile the tree anew each time.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: setup train test lint mutants bench sanitize engines clean cuda-text fuzz models site wheels changelog

setup: $(VENV)/base.stamp

train: $(VENV)/base.stamp
	$(BIN)/python examples/train_gpt.py --out runs/gpt $(TRAIN_ARGS)

test: $(VENV)/dev.stamp
	$(BIN)/python -m pytest $(TEST_ARGS)

# mypy's second process gives up on a busy machine, by status 2; errors in types are 1.
lint: $(VENV)/dev.stamp
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy --num-workers 2 || { [ $$? = 2 ] && $(BIN)/mypy; }
	$(BIN)/lint-imports

fuzz: $(VENV)/dev.stamp
	$(BIN)/python -m tests.comm.engine.fuzz $(FUZZ_FRAMES) $(FUZZ_SEED)

mutants: $(VENV)/dev.stamp
	$(BIN)/python -m tests.mutants.generated

models: $(VENV)/dev.stamp
	for device in cpu:0 opencl:0 sunway:0; do $(BIN)/python -m tests.journeys.models.run --device $$device || exit 1; done

# One training on a real Slurm and a real Ray, where they are installed.
engines: $(VENV)/dev.stamp
	ENGINES=1 $(BIN)/python -m pytest tests/cluster -n 0 -rs

bench: $(VENV)/dev.stamp
	$(BIN)/python -m benchmarks

# Tests that measure or limit the memory of a process fail under a sanitizer, which takes more; the
# suite, which waits for hangs by the clock, is too slow for races: tests/sanitizers runs a part.
sanitize: $(VENV)/dev.stamp
	$(BIN)/python -m tests.sanitizers.run address plugins/cpu/tests -k "not apart and not leaks_nothing" \
		--deselect "plugins/cpu/tests/test_conformance.py::test_the_contract_is_kept[--group=D,F]"
	$(BIN)/python -m tests.sanitizers.run address tests/comm/engine
	$(BIN)/python -m tests.sanitizers.run address plugins/sunway_emu/tests
	$(BIN)/python -m tests.sanitizers.run thread plugins/cpu/tests -k "not apart and not leaks_nothing and not contract_is_kept"
	$(BIN)/python -m tests.sanitizers.run thread tests/comm/engine

# Every kernel by NVRTC for three chips, without a GPU: the compiler is 90 MB, so no other target has it.
cuda-text: $(VENV)/dev.stamp
	$(INSTALL) 'nvidia-cuda-nvrtc-cu12>=12.8' nvidia-cuda-runtime-cu12
	PYTHONPATH=plugins/cuda/src $(BIN)/python -m tests.cuda.report docs/cuda-kernels.md

# The pages of docs/ and the API from docstrings, in build/site.
site: $(VENV)/base.stamp
	$(INSTALL) 'hal-accel[docs]'
	$(BIN)/mkdocs build --quiet

wheels: $(VENV)/base.stamp
	$(BIN)/python -m tests.journeys.wheels build/wheels

# Moves the fragments of changelog.d into CHANGELOG.md, under the version that hal/__init__.py says.
changelog: $(VENV)/dev.stamp
	$(BIN)/towncrier build --yes --version $$($(BIN)/python -c 'import hal; print(hal.__version__)')

clean:
	rm -rf $(VENV) build plugins/*/build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find hal hal_conformance hal_tools stack plugins tests -name '*.so' -delete -o -name '*.egg-info' -prune -exec rm -r {} +

# pip that Python brings can be years old, and takes three times as long to choose among versions.
$(VENV)/base.stamp: pyproject.toml plugins/cpu/pyproject.toml $(NATIVE)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) --upgrade pip 'setuptools>=77' 'cffi>=1.17'
	$(EDIT) --editable '.[train]' --editable plugins/cpu
	touch $@

# torch goes first and alone, so that no other package's requirements choose its version or build.
$(VENV)/dev.stamp: $(VENV)/base.stamp plugins/opencl/pyproject.toml plugins/sunway_emu/pyproject.toml plugins/remote/pyproject.toml
	$(INSTALL) torch==2.13.0
	$(EDIT) 'hal-accel[dev]' --editable 'plugins/opencl[pocl]' --editable plugins/sunway_emu --editable plugins/remote
	touch $@
