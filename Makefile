# Everything here works on a fresh clone with Python 3.10 or newer, pip and a package index.
#
#   make run        set up, then answer a problem with the demo model
#   make test       set up, then the whole test suite      make test-fast   without the slow tests
#   make check      lint, format, types, generated docs    make docs        write generated docs
#   make test-server  schemathesis and lm-eval against a server
#   make test-browser the page in headless Chromium, which it installs where it may
#   make load       64 clients against a server for two minutes (LOAD_S=30 for less)
#   make test-gpu   the tests that need a CUDA device      make bench       host work per tick
#   make wheels     five wheels and five sdists in dist/   make setup       only the set-up

VENV ?= .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.rlt-installed
TOOLS_STAMP := $(VENV)/.rlt-server-tests
BROWSER_STAMP := $(VENV)/.rlt-browser-tests
TORCH ?= torch==2.13.0
# Two processes, on machines with more cores too: each may need a gigabyte. JOBS=8 for more.
JOBS ?= 2
LOAD_S ?= 120
# Each process starts with half of the tests in their order, and takes over from the other when it
# has none left: no file is the long tail, and a module's fixtures are mostly built once.
# Some hundred processes are started: with PYTHONDONTWRITEBYTECODE each would compile rlt again.
PYTEST = env -u PYTHONDONTWRITEBYTECODE $(PY) -m pytest -n $(JOBS) --dist worksteal
PLUGINS := plugins/rlt_ouro plugins/rlt_nanbeige plugins/rlt_huginn plugins/rlt_kernels
DOCS := $(wildcard README.md docs/*.md)

# The first interpreter that is new enough; PYTHON=... on the command line takes precedence.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python3.10 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && echo $$p && break; done)

.PHONY: setup run test test-fast test-server test-browser load test-gpu check format docs bench wheels clean

setup: $(STAMP)

run: $(STAMP)
	$(VENV)/bin/rlt run --seed 0

test: $(STAMP)
	$(PYTEST) -m "not server and not browser"

test-fast: $(STAMP)
	$(PYTEST) -m "not slow and not server and not browser"

# Foreign tools that speak to a server; they are large, and installed when first asked for.
test-server: $(TOOLS_STAMP)
	$(PY) -m pytest -m server tests/server_tools

# Without a Chromium it fails: a browser that is missing is no test that passed.
test-browser: $(BROWSER_STAMP)
	@{ test -n "$$RLT_CHROMIUM" || command -v chromium || command -v chromium-browser || \
	  command -v google-chrome; } >/dev/null || \
	  { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get update -q && \
	    DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends \
	      chromium fonts-dejavu-core; } || \
	  { echo "make test-browser needs Chromium: apt-get install chromium, or" >&2; \
	    echo "RLT_CHROMIUM=/path/to/chromium make test-browser" >&2; exit 2; }
	$(PY) -m pytest -m browser tests/browser

load: $(STAMP)
	$(PY) -m pytest -m server -rP --load-seconds $(LOAD_S) tests/load

# Most of it is compiling kernels, a core's work each; the tests themselves share the GPU well.
test-gpu: JOBS = 8
test-gpu: $(STAMP)
	$(PYTEST) -m gpu
	RLT_TEST_DEVICE=cuda $(PYTEST) -m "" tests/test_stage_gpu.py tests/test_flash_gpu.py \
	  tests/test_flash_package_gpu.py tests/test_equality.py \
	  tests/test_golden_together.py tests/test_huginn_engine.py tests/test_models_equality.py

check: $(STAMP)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(if $(DOCS),$(PY) -m cogapp --check --diff $(DOCS))

format: $(STAMP)
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

docs: $(STAMP)
	$(if $(DOCS),$(PY) -m cogapp -r $(DOCS))

bench: $(STAMP)
	$(VENV)/bin/rlt bench host

wheels: $(STAMP)
	for project in . $(PLUGINS); do $(PY) -m build --no-isolation --outdir dist $$project || exit 1; done

clean:
	rm -rf $(VENV) dist build .mypy_cache .pytest_cache .ruff_cache

$(PY):
	@test -n "$(PYTHON)" || { echo "rlt needs Python 3.10 or newer; none was found on PATH." >&2; \
	  echo "Install one, or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3" >&2; exit 2; }
	@# Some systems ship Python without ensurepip: pip then installs itself from outside.
	$(PYTHON) -m venv $(VENV) || { $(PYTHON) -m venv --clear --without-pip $(VENV) && \
	  $(PYTHON) -m pip --python $(PY) install pip; }

# torch comes first and alone, so that an index that offers a CPU build of this release gives it.
$(STAMP): pyproject.toml $(PLUGINS:%=%/pyproject.toml) | $(PY)
	$(PY) -m pip install --quiet "pip>=22.3" "$(TORCH)"
	$(PY) -m pip install --quiet --editable ".[dev]" $(PLUGINS:%=--editable %)
	@touch $@

$(TOOLS_STAMP): $(STAMP)
	$(PY) -m pip install --quiet --editable ".[server-tests]"
	@touch $@

$(BROWSER_STAMP): $(STAMP)
	$(PY) -m pip install --quiet --editable ".[browser-tests]"
	@touch $@
