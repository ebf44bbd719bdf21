# Every target sets up .venv by itself on a fresh machine; once that is done, nothing here needs a network.
# Another interpreter: make test PYTHON=python3.12

PYTHON ?= python3
VENV := .venv/bin/python

PACKAGES := --editable '.[test,docs]'
# The stamp's name carries a checksum, so that only a change of content, not of a file's date, installs again.
READY := .venv/.ready-$(shell cat setup.py pyproject.toml | cksum | cut -d' ' -f1)
# The extension is optional: the stamp says that its build was tried.
NATIVE := build/.native

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-all test-sanitized lint docs wheel bench clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /make \1: /p' Makefile

demo: $(NATIVE)  ## private inference between two local parties
	@$(VENV) -m scripts.demo

# Pytest's exit status is kept, for make's own is 2 whatever happened: 1 says that all tests ran and some failed. Many
# processes start, so each module is compiled once, whatever the environment says.
test: $(NATIVE)  ## run the tests, but for those marked slow: eight to twelve minutes on two cores, which three workers keep busy
	@PYTHONDONTWRITEBYTECODE= $(VENV) -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder -m "not slow"; status=$$?; echo $$status > build/.tested; exit $$status

# All take two hours on two cores: TESTS="tests/mpc tests/he" runs a part of them.
TESTS ?= tests
test-slow: $(NATIVE)  ## run the tests marked slow
	@$(VENV) -m pytest -q -n 3 --dist load -m slow $(TESTS)

test-all: test test-slow  ## run all tests

# A build of its own: the ordinary one stays where it is. The runtimes come first in a process that did not link them.
SANITIZED := build/sanitized
SANITIZERS := -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all
test-sanitized: $(NATIVE)  ## run the kernels' tests with their C++ under ASan and UBSan (gcc; slow)
	@CC=gcc CXX=g++ CFLAGS="$(SANITIZERS)" CXXFLAGS="$(SANITIZERS)" LDFLAGS="$(SANITIZERS)" \
	    $(VENV) setup.py --quiet build_ext --build-lib $(SANITIZED) --build-temp $(SANITIZED)/objects
	@LD_PRELOAD="$$(for name in asan ubsan stdc++; do gcc -print-file-name=lib$$name.so; done | tr '\n' ' ')" \
	    ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
	    HUMMINGBIRD_KERNELS="$$(echo $(SANITIZED)/hummingbird/kernels/cpu/_native*.so)" \
	    $(VENV) -m pytest -q --capture=sys -m "not slow and not gpu" tests/kernels

lint: $(READY)  ## ruff and mypy
	@$(VENV) -m ruff check .
	@$(VENV) -m mypy

# One wheel for all versions of Python; auditwheel checks that it runs where glibc is 2.27 or newer, and names it so.
MANYLINUX := manylinux_2_27_$(shell uname -m)
wheel: $(READY)  ## build the sdist and the Linux wheel, into dist/
	@rm -rf dist build/wheel
	@$(VENV) -m build --sdist --wheel --outdir build/wheel .
	@mkdir -p dist && mv build/wheel/*.tar.gz dist/
	@PATH="$$PWD/.venv/bin:$$PATH" $(VENV) -m auditwheel repair --plat $(MANYLINUX) --wheel-dir dist build/wheel/*.whl

docs: $(READY)  ## build the site in build/site; a broken link, a missing anchor or an unknown name is an error
	@$(VENV) -m sphinx -E -W --keep-going -q -j auto -c docs . build/site
	@echo "Open build/site/index.html in a browser."

bench: $(NATIVE)  ## time and bits of a private ReLU
	@$(VENV) -m scripts.bench.relu

clean:  ## remove .venv and everything built
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache hummingbird/kernels/cpu/*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# uv takes a fifth of pip's time; pip has settings, as of a mirror, that uv does not read.
$(READY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	    echo "error: Python 3.10 or newer is needed, and '$(PYTHON)' is $$($(PYTHON) --version 2>&1)" >&2; \
	    echo "hint: make PYTHON=python3.12 (or the path of another interpreter)" >&2; exit 1; }
	@echo "Setting up .venv and building the kernels in C++ (first run only, about two minutes; some 3 GB) ..."
	@$(PYTHON) -m venv .venv || { echo "hint: on Debian and Ubuntu, apt install python3-venv" >&2; exit 1; }
	@$(VENV) -m pip install --disable-pip-version-check uv && \
	    $(VENV) -m uv pip install --python $(VENV) $(PACKAGES) || { \
	    echo "uv has failed; its error is above. Installing with pip ..."; \
	    $(VENV) -m pip install --disable-pip-version-check $(PACKAGES); }
	@rm -f .venv/.ready-*
	@touch $@

# The installation has built the kernels, too, unless it took itself from a cache.
KERNELS := $(wildcard hummingbird/kernels/cpu/csrc/*) setup.py
$(NATIVE): $(KERNELS) | $(READY)
	@built=$$(ls -t hummingbird/kernels/cpu/_native*.so 2>/dev/null | tail -1); [ -n "$$built" ] && [ -z "$$(find $(KERNELS) -newer $$built)" ] || { \
	    echo "Building the kernels in C++ (about a minute) ..."; \
	    rm -f hummingbird/kernels/cpu/_native*.so; \
	    $(VENV) setup.py --quiet build_ext --inplace; }
	@mkdir -p build && touch $@
