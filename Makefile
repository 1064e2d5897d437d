# The project's doors. `make help` says what each is for; each installs what it
# needs (Debian packages, as root) and builds first.

SHELL := /bin/bash
CARGO ?= cargo
TARGET = $${CARGO_TARGET_DIR:-target}
SLUICE = $(TARGET)/release/sluice
BENCH = $(TARGET)/release/sluice-bench
RESULTS = bench/results
# rustup puts cargo where a login shell finds it and make does not
export PATH := $(HOME)/.cargo/bin:$(PATH)

.DEFAULT_GOAL := help
.PHONY: help demo test figures soak build

help: ## this list
	@echo "make TARGET, where TARGET is"
	@sed -nE 's/^([a-z]+):.*## (.*)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 10
	@echo "One suite of the tests: cargo xtask ci SUITE (cargo xtask ci --list names them)."

demo: ## two jobs on one mount of a proxy, without rules and then with them (2 minutes)
	@.ci/install-deps.sh build demo
	@.ci/build.sh sluice sluice-bench
	@$(BENCH) demo --dir $(TARGET) --out $(TARGET)/demo.svg

test: ## every suite of CI; the table at the end says where the time went (half an hour in a fresh clone)
	@.ci/install-deps.sh build test
	@$(CARGO) xtask ci

figures: ## every figure of docs/FIGURES.md that is not measured yet; goes on where it was stopped (some hours; ROW=name or group, or with *, for some, UNTIL=150m for a part)
	@.ci/install-deps.sh build bench
	@.ci/build.sh sluice sluice-library sluice-bench
	@set -f; $(BENCH) figures run $(ROW) --out $(RESULTS)/figures.json $(if $(UNTIL),--until $(UNTIL))
	@$(BENCH) figures print > docs/FIGURES.md
	@$(BENCH) figures fill README.md > $(TARGET)/README.md && cp $(TARGET)/README.md README.md

soak: ## load for SOAK seconds (default 1800); fails if memory or descriptors grow; then ten minutes of attacks, 50 deaths of a proxy, mounts for an hour, real software for two, 1,000 scenarios by chance, and a million steps each of leases and of sessions over a lossy network
	@.ci/install-deps.sh build soak
	@.ci/build.sh sluice sluice-bench
	@tests/soak.sh $(SLUICE) $${SOAK:-1800}
	@SLUICE_HOSTILE_S=200 $(CARGO) test --package sluice --test all hostile -- --nocapture --test-threads=1
	@SLUICE_KILLS=50 $(CARGO) test --package sluice --test all mount_kills -- --nocapture
	@LONG=1 tests/mount.sh $(SLUICE) fsx
	@LONG=1 tests/mount.sh $(SLUICE) stress
	@tests/programs.sh $(SLUICE) long
	@$(SLUICE) sim --seeds 1000
	@SLUICE_LEASE_STEPS=1000000 $(CARGO) test --package sluice-leases --test all
	@SLUICE_SESSION_STEPS=1000000 $(CARGO) test --package sluice-sim --test all sessions -- --nocapture

build: ## the release binary, target/release/sluice, its debug symbols, sluice.debug beside it, and libsluice.so
	@.ci/install-deps.sh build
	@.ci/build.sh sluice sluice-library
