# make demo and make test set up everything themselves: .venv, torch, the tools and the build.
#   TORCH=...    what to install as torch: "torch==2.11.0", "torch --index-url URL", a wheel's path
#   PYTHON=...   the Python to make .venv with
#   COMPAT_TORCH=...   the versions of torch that make compat tests with
#   EXAMPLES=...   how many random calls make fuzz makes, and how many graphs make fuzz-graphs
#                  compiles; FUZZ=... more of their options
# The environment variables of the build are in setup.py.

TORCH ?= torch==2.13.0
PYTHON ?= python3
TORCH_WORDS = $(foreach word,$(TORCH),'$(word)')  # torch>=2.12 would write to a file
COMPAT_TORCH ?= 2.10.0 2.11.0 2.12.1 2.13.0 2.14.1 newest
COMPAT_PYTEST ?= -n auto
EXAMPLES ?= 20000

BIN := .venv/bin
# Python compiles what it imports, once; pip would compile all of torch, with one core.
INSTALL := $(BIN)/pip install --quiet --no-compile
unexport PYTHONDONTWRITEBYTECODE
# What setup.py builds: cpu or, with the CUDA library, as in cu130.
VARIANT = $(shell REDUCEOPS_CUDA='$(REDUCEOPS_CUDA)' CUDA_HOME='$(CUDA_HOME)' \
	$(BIN)/python -c 'import runpy; print(runpy.run_path("setup.py")["variant"]())')
# What that library needs to fuse convolutions, unless REDUCEOPS_CUDNN says otherwise. (Asked once,
# and not before the tools are there.)
CUDNN = $(eval CUDNN := $(if $(REDUCEOPS_CUDNN),,$(if $(findstring cu,$(VARIANT)),build/cudnn)))$(CUDNN)
CSRC = find csrc tests compile_examples -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh'
SANITIZED := build/sanitize-address-undefined/lib
THREAD_SANITIZED := build/sanitize-thread/lib

.NOTPARALLEL:  # one pip at a time
.PHONY: demo clients test lint workflows format build libraries wheel
.PHONY: dist check-dist check-sdist check-install
.PHONY: docs docs-data compat fuzz fuzz-graphs sanitize sanitize-threads sanitize-cuda correctness clean distclean FORCE

# Every example: the models of KernelBench, and the programs with small inputs. (Inductor need not
# compile a program for each kind of vectors, to see which there are.)
demo: build
	TORCHINDUCTOR_VEC_ISA_OK=1 $(BIN)/python -m compile_examples

# The examples with torchvision, transformers and scikit-learn, which are installed for them.
clients: build .venv/clients
	$(BIN)/python -m compile_examples.clients

test: lint build .venv/tools
	$(BIN)/python -m pytest -n auto --dist worksteal tests

lint: .venv/lint .venv/tools
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(CSRC) | xargs $(BIN)/clang-format --dry-run -Werror
	$(BIN)/mypy & $(BIN)/basedpyright --level error --pythonpath $(BIN)/python && wait $$!

workflows: .venv/workflows
	$(BIN)/actionlint

format: .venv/lint
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(CSRC) | xargs $(BIN)/clang-format -i

build: libraries .venv/develop

# ninja decides what there is to do.
libraries: .venv/build
	$(BIN)/python setup.py --quiet build_ext --inplace

wheel: .venv/dist
	$(if $(CUDNN),$(MAKE) $(CUDNN))
	$(if $(CUDNN),REDUCEOPS_CUDNN='$(abspath $(CUDNN))') \
		$(BIN)/pip wheel --no-build-isolation --no-deps --wheel-dir dist .

# The headers of cuDNN, out of a package of some 370 MB.
build/cudnn: | .venv/build
	$(INSTALL) --no-deps --no-cache-dir --target $@-package 'nvidia-cudnn-cu13==9.*'
	mv $@-package/nvidia/cudnn/include $@
	rm -rf $@-package

dist: .venv/dist
	rm -f dist/*+cpu* dist/*.tar.gz
	REDUCEOPS_CUDA=0 $(BIN)/pip wheel --no-build-isolation --no-deps --wheel-dir dist .
	$(BIN)/python -m build --sdist --no-isolation --outdir dist .

# What is in dist; the CPU wheel and the source distribution are built if nothing is.
check-dist: .venv/dist
	@ls dist/*.whl > /dev/null 2>&1 || $(MAKE) dist
	$(BIN)/twine check --strict dist/*
	$(BIN)/python .ci/check_dist.py dist/*

# The source distribution of dist: it builds, and passes some tests, in an environment of its own.
SDIST_TESTS := types errors import environment docs
check-sdist:
	rm -rf build/sdist && mkdir -p build/sdist
	tar -xzf dist/*.tar.gz --strip-components=1 -C build/sdist
	$(MAKE) -C build/sdist build .venv/tools
	cd build/sdist && $(BIN)/python -m pytest -n auto $(SDIST_TESTS:%=tests/test_%.py)

# The CPU wheel of dist, in an empty environment of PYTHON with TORCH.
check-install:
	rm -rf build/install
	$(PYTHON) -m venv build/install
	build/install/bin/pip install --quiet $(TORCH_WORDS)
	build/install/bin/pip install --quiet dist/*+cpu*.whl
	cd build/install && bin/python -I ../../.ci/check_install.py ../../README.md

docs: .venv/docs
	$(BIN)/mkdocs build --strict

docs-data: build .venv/tools
	$(BIN)/python .ci/docs_data.py

# Some gigabytes for each torch, in build/compat, which make clean removes.
compat: wheel .venv/tools
	$(BIN)/python .ci/compat.py --pytest='$(COMPAT_PYTEST)' "$$(ls -t dist/*.whl | head -1)" $(COMPAT_TORCH)

# FUZZ="--seed 7" repeats a run, FUZZ="--jobs 1" uses one core.
fuzz: build .venv/tools
	$(BIN)/python tests/fuzz.py --examples $(EXAMPLES) $(FUZZ)

# Compiled graphs against eager mode.
fuzz-graphs: build .venv/tools
	$(BIN)/python tests/fuzz_graphs.py $(EXAMPLES) $(FUZZ)

# Python is linked neither with the sanitizers' runtime nor with the C++ library whose exceptions it
# watches. Their reports are on stderr: pytest is not to capture it.
sanitize: build .venv/tools
	CXX='$(CXX)' REDUCEOPS_CUDA=0 REDUCEOPS_SANITIZE=address,undefined \
		$(BIN)/python setup.py --quiet build_ext --build-lib $(SANITIZED)
	REDUCEOPS_LIBRARY_DIR=$(CURDIR)/$(SANITIZED)/customops/lib CUDA_VISIBLE_DEVICES= \
		ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1 \
		LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
		$(BIN)/python -m pytest -n auto --capture=sys tests

# Data races in the CPU library. The sanitizer wants its memory where some systems put other things at
# random, hence setarch.
sanitize-threads: build .venv/tools
	CXX='$(CXX)' REDUCEOPS_CUDA=0 REDUCEOPS_SANITIZE=thread \
		$(BIN)/python setup.py --quiet build_ext --build-lib $(THREAD_SANITIZED)
	REDUCEOPS_LIBRARY_DIR=$(CURDIR)/$(THREAD_SANITIZED)/customops/lib CUDA_VISIBLE_DEVICES= \
		TSAN_OPTIONS="exitcode=66 suppressions=$(CURDIR)/tests/thread_sanitizer.supp" \
		LD_PRELOAD="$$($(CXX) -print-file-name=libtsan.so)" \
		setarch -R $(BIN)/python -m pytest --capture=sys tests/test_threads.py tests/test_cpu_walks.py \
		-k 'disturb and cpu or denormals'

# On a machine with a GPU and compute-sanitizer, which comes with CUDA.
sanitize-cuda: build .venv/tools
	$(BIN)/python tests/sanitize_cuda.py

# What torch.compile gets wrong and ours does not, on this torch and these devices.
correctness: build .venv/tools
	$(BIN)/python tests/corpus.py docs/correctness.json
	$(BIN)/python .ci/docs_data.py

clean:
	rm -rf build customops/lib customops.egg-info dist .venv/develop

distclean: clean
	rm -rf .venv

# Without ensurepip (python3-venv of Debian) a Python is left that has no pip.
$(BIN)/python:
	$(PYTHON) -m venv .venv || { rm -f $@; exit 1; }

# Changes only when TORCH does.
.venv/torch: $(BIN)/python FORCE
	@echo '$(TORCH)' | cmp -s - $@ || echo '$(TORCH)' > $@

.venv/torch-installed: .venv/torch
	$(INSTALL) $(TORCH_WORDS)
	@touch $@

# Sets of tools, each installed once and again when its list changes.
.venv/build .venv/tools .venv/lint .venv/docs .venv/dist: .venv/%: requirements/%.txt .venv/torch
	$(INSTALL) -r $<
	@touch $@
.venv/build .venv/tools .venv/dist: .venv/torch-installed
.venv/tools .venv/dist: requirements/build.txt
.venv/tools: requirements/lint.txt

# torchvision from where torch is, the others from the package index.
.venv/clients: requirements/clients.txt .venv/torch-installed
	$(INSTALL) $(TORCH_WORDS) torchvision
	$(INSTALL) -r $<
	@touch $@

.venv/workflows: requirements/workflows.txt | $(BIN)/python
	$(INSTALL) -r $<
	@touch $@

# After the libraries, for pip hides the compiler.
.venv/develop: .venv/build pyproject.toml | libraries
	$(INSTALL) --no-build-isolation --editable .
	@touch $@
