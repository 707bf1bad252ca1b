# make demo | test | lint: each sets up .venv by itself, once. ARGS is passed on, for example
#   make demo ARGS="--sites 2 --rounds 4 --no-faults --out demo-out"
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
EVAL := .venv-eval/.installed
PEERS := .venv-peers/.installed
ARGS ?=
SELDOM := /(tests?|testing|transformers/models|torch/(_inductor|ao|onnx)|networkx|matplotlib|fontTools|pygments|wandb|pip)/

# Two cores are enough for everything here only if no library starts a thread per core in every process.
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false

.PHONY: demo test test-in-process test-in-process-1 test-in-process-2 test-simulation test-processes test-parts test-sites test-guides test-adversary test-families test-compiled test-node-faults test-fast test-images test-systemd test-containers test-first-hour test-dashboard bench stories docs lint format sbom clean

demo: $(STAMP)
	$(BIN)/python -m tests.demo $(ARGS)

# All passes when nothing is asked for in particular: what starts no daemons, then what does. `make lint` has what is said
# of the sources themselves (tests/architecture).
APART := --ignore tests/systemd --ignore tests/containers --ignore tests/dashboard --ignore tests/adversary
test: $(STAMP)
ifeq ($(strip $(ARGS)),)
	$(MAKE) test-in-process test-simulation test-processes
else
	$(BIN)/python -m pytest -q $(APART) $(ARGS)
endif

# Two halves side by side, for two workers of one pytest would collect all of it each: half a minute of CPU, and most
# tests take less than it costs to tell of them between processes.
HALF := $(addprefix tests/unit/,cli daemon outerworker trained)
IN_PROCESS := -q --durations 25 -m "not processes"
test-in-process: $(STAMP)
	$(MAKE) -j 2 $(if $(filter output-sync,$(.FEATURES)),-O) test-in-process-1 test-in-process-2

test-in-process-1: $(STAMP)
	$(BIN)/python -m pytest $(IN_PROCESS) $(HALF)

test-in-process-2: $(STAMP)
	$(BIN)/python -m pytest $(IN_PROCESS) $(APART) --ignore tests/simulation --ignore tests/architecture $(addprefix --ignore ,$(HALF))

# 2,000 schedules of the round machine, those that failed once, and planted bugs: no test needs another one, so whichever
# process has nothing left to do takes some from the other.
test-simulation: $(STAMP)
	$(BIN)/python -m pytest -q -n 2 --dist worksteal --durations 5 tests/simulation

# A file's tests follow each other, four files at a time: every process has ports and network namespaces of its own, and
# most of a test with daemons is waiting. In one pytest, for each further one imports, collects and warms up its own.
# Parts of a site (its workers, its trainers, its node in the swarm), whole sites, what people run by hand (tutorials,
# benchmarks, the wheel), and attacks.
PARTS := $(addprefix tests/integration/,internet outer_worker swarm trainers test_fork_server.py)
GUIDES := tests/tutorials tests/documents tests/integration/test_benchmarks.py tests/integration/one_site/test_wheel.py
SITES := tests/integration tests/remedies $(addprefix --ignore ,$(PARTS) $(GUIDES))
PROCESSES := -q -n 4 --dist loadfile --no-loadscope-reorder --durations 30 -m "processes and not families and not node_faults and not compiled"
test-processes: $(STAMP) $(EVAL)
	$(BIN)/python -m pytest $(PROCESSES) tests/integration tests/tutorials tests/documents tests/remedies tests/adversary

test-parts: $(STAMP)
	$(BIN)/python -m pytest $(PROCESSES) $(PARTS)

test-sites: $(STAMP)
	$(BIN)/python -m pytest $(PROCESSES) $(SITES)

test-guides: $(STAMP) $(EVAL)
	$(BIN)/python -m pytest $(PROCESSES) $(GUIDES)

# Every family of models from published weights through two real sites and out again, bits compared: 20 seconds of CPU
# for each. `make test` takes some of them.
test-families: $(STAMP)
	$(BIN)/python -m pytest -q -n 2 --durations 20 tests/integration/models/test_families.py $(ARGS)
	$(BIN)/python -m pytest -q -m families tests/integration/trainers/test_pipeline.py $(ARGS)

# Layouts and families with compiled blocks against the plain model: 20 seconds of CPU for each.
# `make test` traces a small block and compiles nothing.
test-compiled: $(STAMP)
	$(BIN)/python -m pytest -q --durations 20 -m compiled tests/integration/trainers/test_pipeline.py $(ARGS)

# A node, its link, its disk, its agent and the head lost at every moment of a round, on three machines: 25 cells of half a
# minute (docs/lab/benchmarks.md has their figures). `make test` takes three of them.
test-node-faults: $(STAMP)
	$(BIN)/python -m pytest -q -s tests/integration/nodes/test_faults_on_nodes.py $(ARGS)

# Attacks on real daemons, each also on one without its mend (tests/adversary).
test-adversary: $(STAMP)
	$(BIN)/python -m pytest $(PROCESSES) tests/adversary $(ARGS)

# Real systemd and real containers, on a Docker engine that the tests start themselves; as root. What is missing on the
# machine is named. The images of both are made once and kept in DILOCOXD_ENGINE. `make test` leaves them out.
test-images: $(STAMP)
	$(BIN)/python -m tests.containers.engine

test-systemd: $(STAMP)
	$(BIN)/python -m pytest -q -s -x tests/systemd $(ARGS)

test-containers: $(STAMP)
	$(BIN)/python -m pytest -q -s -x tests/containers --ignore tests/containers/test_first_hour.py $(ARGS)

# The README typed into three bare containers, by the clock (docs/lab/first-hour.md). Its figures mean something only on a
# machine that does nothing else, so no other target includes it.
test-first-hour: $(STAMP)
	$(BIN)/python -m pytest -q -s -x tests/containers/test_first_hour.py $(ARGS)

# Needs chromium and chromium-driver; renews the pictures in docs/images.
test-dashboard: $(STAMP)
	DILOCOXD_KEEP_PICTURES=1 $(BIN)/python -m pytest -q tests/dashboard $(ARGS)

# Everything that starts no daemons and takes no longer than a few seconds.
test-fast: $(STAMP)
	$(BIN)/python -m pytest -q -m "not processes and not slow and not browser" $(ARGS)

# Measures what docs/benchmarks.md says, half an hour on a quiet machine, and writes it there; as root. One row alone, or
# the pages again from what was measured: make bench ARGS=headline, make bench ARGS=--pages.
bench: $(STAMP) $(PEERS)
	$(BIN)/python -m tests.bench.page $(ARGS)

# The documentation as a site in build/site; a link that leads nowhere fails.
docs: $(STAMP)
	$(BIN)/python -m tests.documents.site build/site

# Writes protocol/stories/*.txt anew: how the machines behave, as text.
stories: $(STAMP)
	$(BIN)/python -m tests.stories

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/architecture

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# torch comes first and alone: its exact version decides which build is taken, and everything else accepts it.
$(STAMP): constraints.txt pyproject.toml dilocoxd/compress/loops.c
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "dilocoxd needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt setuptools
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt --no-build-isolation -e ".[demo,dev,docs]"
	@# On all cores, where pip takes one; what is seldom imported, two thirds of it, is compiled when it is for the first
	@# time. Packages carry templates that are no Python, which is told and does not matter.
	$(BIN)/python -m compileall -q -j 0 -x '$(SELDOM)' $(VENV)/lib >/dev/null || true
	touch $@

# The harness of benchmarks that docs/tutorials/continue-a-model.md runs: in a place of its own, where the packages of
# $(VENV) are seen too: pip and what builds packages are among those.
$(EVAL): constraints-eval.txt $(STAMP)
	test -x .venv-eval/bin/python || "$(PYTHON)" -m venv --without-pip .venv-eval
	for python in .venv-eval/bin/python $(BIN)/python; do $$python -c 'import site; print(site.getsitepackages()[0])'; done | \
	  { read -r own && read -r other && echo "$$other" > "$$own/beside.pth"; }
	.venv-eval/bin/python -m pip install --quiet --no-compile --no-deps --no-build-isolation -r constraints-eval.txt
	.venv-eval/bin/python -m pip check
	touch $@

# What tests/bench/peers measures beside ours and is no package of dilocoxd: in a place of its own, as the harness.
$(PEERS): constraints-peers.txt $(STAMP)
	test -x .venv-peers/bin/python || "$(PYTHON)" -m venv --without-pip .venv-peers
	for python in .venv-peers/bin/python $(BIN)/python; do $$python -c 'import site; print(site.getsitepackages()[0])'; done | \
	  { read -r own && read -r other && echo "$$other" > "$$own/beside.pth"; }
	.venv-peers/bin/python -m pip install --quiet --no-compile --no-deps -r constraints-peers.txt
	.venv-peers/bin/python -m pip check
	touch $@

# What is installed, as CycloneDX JSON; the tool has a place of its own, so that it is not part of the list.
sbom: $(STAMP)
	test -x .venv-sbom/bin/cyclonedx-py || { "$(PYTHON)" -m venv .venv-sbom && \
	  .venv-sbom/bin/python -m pip install --quiet -c constraints-sbom.txt cyclonedx-bom; }
	.venv-sbom/bin/cyclonedx-py environment --output-reproducible --of JSON -o sbom.cdx.json $(BIN)/python

clean:
	rm -rf $(VENV) .venv-eval .venv-peers .venv-sbom sbom.cdx.json build dist *.egg-info demo-out .pytest_cache .mypy_cache .ruff_cache .import_linter_cache

# The sha256 of each package that runs, for this kind of machine; nothing is installed (SECURITY.md).
.PHONY: hashes install-hashed
hashes: $(STAMP)
	$(BIN)/python -m tests.harness.package_hashes > constraints-hashes.new
	mv constraints-hashes.new constraints-hashes.txt

# dilocoxd into PREFIX, each package with its hash. setuptools builds the few that have no wheel; torch comes last and
# without a hash: everything it needs is there already, but for the libraries of a GPU build.
install-hashed:
	test -x $(PREFIX)/bin/python || "$(PYTHON)" -m venv $(PREFIX)
	grep '^setuptools==' constraints-hashes.txt | \
	  $(PREFIX)/bin/python -m pip install --quiet --require-hashes --no-deps -r /dev/stdin
	$(PREFIX)/bin/python -m pip install --quiet --require-hashes --no-deps --no-build-isolation -r constraints-hashes.txt
	$(PREFIX)/bin/python -m pip install --quiet -c constraints.txt torch==2.13.0
	$(PREFIX)/bin/python -m pip install --quiet --no-deps --no-build-isolation .
	$(PREFIX)/bin/python -m pip check

# As root: dilocoxd into /opt/dilocoxd, its user and units into the system (docs/operations/systemd.md).
.PHONY: install-systemd
PREFIX := /opt/dilocoxd
install-systemd:
	test -x $(PREFIX)/bin/python || "$(PYTHON)" -m venv $(PREFIX)
	$(PREFIX)/bin/python -m pip install --quiet -c constraints.txt torch==2.13.0
	$(PREFIX)/bin/python -m pip install --quiet -c constraints.txt setuptools
	$(PREFIX)/bin/python -m pip install --quiet -c constraints.txt --no-build-isolation ".[hf]"
	ln -sfn $(PREFIX)/bin/dilocoxd /usr/local/bin/dilocoxd
	install -m 0755 dilocoxd/shipped/systemd/dilocoxd-admin /usr/local/bin/dilocoxd-admin
	install -D -m 0644 -t /etc/systemd/system $(addprefix dilocoxd/shipped/systemd/,dilocoxd.service dilocoxd@.service dilocoxd-node.service)
	install -D -m 0644 dilocoxd/shipped/systemd/dilocoxd.sysusers /usr/lib/sysusers.d/dilocoxd.conf
	install -D -m 0644 dilocoxd/shipped/systemd/dilocoxd.tmpfiles /usr/lib/tmpfiles.d/dilocoxd.conf
	systemd-sysusers dilocoxd.conf
	systemd-tmpfiles --create dilocoxd.conf
	systemctl daemon-reload
