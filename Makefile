# returnerd: `make demo` shows it with a real Salt, `make test` runs every test. Both do all set-up themselves.
# Settings, as `make test NAME=value` or from the environment:
#   RETURNERD_CACHE   where set-up keeps what it installs (~/.cache/returnerd)
#   CARGO_TARGET_DIR  where cargo builds ($(RETURNERD_CACHE)/target)
#   DENY=install      lets `make test` install cargo-deny, which takes minutes

SHELL := /bin/bash
RETURNERD_CACHE ?= $(HOME)/.cache/returnerd
CARGO_TARGET_DIR ?= $(RETURNERD_CACHE)/target
export RETURNERD_CACHE CARGO_TARGET_DIR

SALT_VERSIONS := 3008.4 3006.26

# Debian packages, each with the command or file that shows it is there.
PACKAGES := gcc:cc \
	clang-19:clang-19 llvm-19:llvm-ar-19 wasi-libc:/usr/include/wasm32-wasi/stdio.h \
	mariadb-server:mariadbd 'postgresql:/usr/lib/postgresql/*/bin/initdb' redis-server:redis-server \
	rsyslog:rsyslogd rsyslog-gnutls:/usr/lib/*/rsyslog/lmnsd_gtls.so openssl:openssl

# Tests with servers take memory: not as many at once as a large machine has cores.
RUST_TEST_THREADS ?= $(shell n=$$(nproc); echo $$((n < 4 ? n : 4)))
export RUST_TEST_THREADS

# Continuous integration takes the dependencies exactly as they were committed.
LOCKED := $(if $(CI),--locked)
# Where `build` puts the programs of the tests' crate; they find the daemon and the plugins by themselves.
PROGRAMS := $(CARGO_TARGET_DIR)/debug

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup build plugins demo dist soak bench bench-check compat hostile fuzz test test-rust test-python fmt lint docs deny clean

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

setup: ## install what building and testing need, if it is missing
	@tests/setup/packages.sh $(PACKAGES)
	@tests/setup/wasm.sh
	@for version in $(SALT_VERSIONS); do tests/setup/salt.sh $$version || exit 1; done

# Always the whole workspace: with fewer packages cargo would choose other features of what they share, and compile it anew.
build: setup ## the daemon and everything that tests it
	cargo build $(LOCKED) --workspace --all-targets

plugins: setup ## every plugin, into $CARGO_TARGET_DIR/plugins
	tests/setup/plugins.sh

demo: build plugins ## a real Salt's returns through the daemon into SQLite and back
	$(PROGRAMS)/demo

dist: setup plugins ## the daemon, optimised, and the plugins, into $CARGO_TARGET_DIR/dist
	cargo build $(LOCKED) --release --package returnerd
	@mkdir -p $(CARGO_TARGET_DIR)/dist/plugins
	@cp $(CARGO_TARGET_DIR)/release/returnerd $(CARGO_TARGET_DIR)/dist/
	@cp $(CARGO_TARGET_DIR)/plugins/*.wasm $(CARGO_TARGET_DIR)/dist/plugins/
	@echo "made $(CARGO_TARGET_DIR)/dist"

soak: build plugins ## crashes of every part at random, then counting; SOAK_SECONDS (300), SOAK_SEED
	$(PROGRAMS)/soak

bench: setup plugins ## figures, as ratios of one run; BENCH_ONLY=ack, spool, drain, boundary, growth, startup, ladder, salt, coupling
	cargo build $(LOCKED) --release --workspace --bins --benches
	cargo bench $(LOCKED) --quiet --workspace --bench bench --bench servers

bench-check: setup plugins ## instructions of the hot paths against those kept in the repository; RENEW=1 keeps the new ones
	@tests/setup/packages.sh valgrind:valgrind
	RENEW=$(RENEW) cargo bench $(LOCKED) --quiet --workspace --bench counts

test: lint build plugins test-rust test-python deny ## everything that must pass

test-rust: build plugins ## unit tests and end-to-end tests
	cargo test $(LOCKED) --workspace

test-python: setup ## the shim's tests, with the Python of each Salt
	tests/setup/python-tests.sh $(SALT_VERSIONS)

compat: build plugins ## plugins beside Salt's own returners, case by case; see tests/compat
	$(PROGRAMS)/compat

hostile: build plugins ## hostile plugins against the daemon; HOSTILE_LOAD=1 adds load
	$(PROGRAMS)/hostile

fuzz: setup ## mutate inputs of what reads foreign bytes, for FUZZ_SECONDS (60)
	cargo bench $(LOCKED) --quiet --profile dev --workspace --bench fuzz

fmt: ## format the code
	cargo fmt --all

lint: setup ## format and clippy, warnings denied
	cargo fmt --all --check
	cargo clippy $(LOCKED) --workspace --all-targets --quiet -- --deny warnings

docs: build ## the tables of options in the plugins' READMEs, from their manifests
	$(PROGRAMS)/docs

deny: ## licences, sources and advisories of the dependencies
	@tests/setup/deny.sh

clean: ## remove what was built; what set-up installed stays
	cargo clean
