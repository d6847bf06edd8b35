# Glasshouse. Use `make up` on a new machine, and `make check test` before a push. Other targets
# are parts of these.

SHELL := /bin/bash
DATA  ?= $(if $(filter 0,$(shell id -u)),/var/lib/glasshouse,$(HOME)/.local/share/glasshouse)
LISTEN ?= 127.0.0.1:8082
export CGO_ENABLED := 0

# Tools that scripts/setup.sh has fetched, among them Go if the machine has none that is new enough.
export PATH := $(abspath $(DATA))/tools/bin:$(PATH)
GO      ?= $(or $(wildcard $(abspath $(DATA))/tools/bin/go),go)
# Without the directory in them, compiled packages are the same in each clone, and for programs and
# their tests. Otherwise each package and dependency is compiled twice.
# The user's flags may be in the environment or in the file of go env -w.
export GOFLAGS := -trimpath $(filter-out -trimpath,$(shell $(GO) env GOFLAGS 2>/dev/null))
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X glasshouse/cli.version=$(VERSION)

.PHONY: chart cluster fuzz lint vm help up down build deb release image images ui sdk test test-fast test-all check generate bench setup example docs clean
.DEFAULT_GOAL := help

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t12

up: ## install missing programs, build, start the daemon, run a demo jail
	@scripts/up.sh "$(DATA)" "$(LISTEN)"

down: ## stop the daemon that `make up` started; jails continue to run
	@scripts/down.sh "$(DATA)"

setup: ## install missing programs only
	@scripts/setup.sh "$(DATA)" $(WITH)

# Builds are for this machine, or with ARCH=arm64 or ARCH=amd64 for another architecture, in
# bin/ARCH. Each architecture has its own directory of embedded programs.
HOSTARCH := $(shell $(GO) env GOHOSTARCH 2>/dev/null)
ARCH     ?= $(HOSTARCH)
BIN      := $(if $(filter $(HOSTARCH),$(ARCH)),bin,bin/$(ARCH))
EMBEDDED := cmd/glasshouse/embedded/$(ARCH)

build: ## bin/glasshouse; needs Go, which make setup installs
ifeq ($(HOSTARCH),)
	$(error Go is missing: run make setup, or install it, see https://go.dev/doc/install)
endif
ifeq ($(filter amd64 arm64,$(ARCH)),)
	$(error unsupported architecture $(ARCH): Glasshouse has eBPF programs and system call tables for amd64 and arm64 only)
endif
	@mkdir -p $(BIN) $(EMBEDDED)
	GOARCH=$(ARCH) $(GO) build -ldflags '-s -w' -o $(EMBEDDED)/glasshouse-init ./cmd/glasshouse-init
	GOARCH=$(ARCH) $(GO) build -ldflags '-s -w' -o $(EMBEDDED)/glasshouse-agent ./cmd/glasshouse-agent
	GOARCH=$(ARCH) $(GO) build -ldflags '-s -w' -o $(EMBEDDED)/glasshouse-guest ./cmd/glasshouse-guest
	GOARCH=$(ARCH) $(GO) build -ldflags '$(LDFLAGS)' -o $(BIN)/glasshouse ./cmd/glasshouse

deb: build ## a Debian package, bin/glasshouse_*.deb
	@scripts/deb.sh $(BIN)/glasshouse bin

release: ## all files of a release for amd64 and arm64, in bin/release; signed with GLASSHOUSE_RELEASE_KEY
	@scripts/release.sh bin/release

image: build ## a container image, bin/glasshouse_*.oci.tar
	@$(GO) run ./packaging/image $(BIN)/glasshouse bin

images: ## one image for amd64 and arm64; needs qemu-user-static for the other architecture
	@$(MAKE) --no-print-directory ARCH=amd64 build
	@$(MAKE) --no-print-directory ARCH=arm64 build
	@$(GO) run ./packaging/image $(if $(filter amd64,$(HOSTARCH)),bin/glasshouse bin/arm64/glasshouse,bin/amd64/glasshouse bin/glasshouse) bin

ui: ## the UI, from web/ui into web/dist; needs Node
	@scripts/ui.sh

sdk: ## the clients in sdk/, from the API, ready to be installed; needs Node
	@scripts/sdk.sh

screenshots: build ## docs/images, from the built UI and commands; needs Chromium and npm
	@mkdir -p docs/images
	GLASSHOUSE_DATA="$(DATA)" GLASSHOUSE_SCREENSHOTS=$(CURDIR)/docs/images $(GO) test -count=1 -run '^(TestScreenshots|TestRecording)$$' ./test

generate: ## the eBPF programs, system call tables and event fields; needs clang-14 and libbpf-dev
	$(GO) generate ./observe/... ./policy/enforce

check: build lint chart ## lint, formatting, generated files, clients, the other architecture, the chart
	@scripts/ui.sh install
	@scripts/check.sh "$(DATA)"

# A module of its own, so that the libraries of Kubernetes and Helm are no dependencies of Glasshouse.
chart: build ## tests of the Helm chart
	@cd deploy && CGO_ENABLED=0 $(GO) test ./...

cluster: build ## the chart in a Kubernetes cluster on this machine, which is built from Go modules; needs root
	@scripts/setup.sh "$(DATA)" tests
	@deploy/cluster/run.sh

lint: ## vet, staticcheck, nilness, lock analysis (checklocks), effects in heads of if
	@scripts/lint/run.sh

# Packages whose tests start jails or daemons, or change the host.
HOST := ^glasshouse/(test|jail/snapshot|jail/backend/.*|agents/agent/spawn|capability/engine/jailed|capability/engine/native|e2b/envd|policy/enforce|observe/(bodies|kernel|network|gvisor|ptrace)|observe|jail/init|host/.*|cmd/.*|packaging/.*)$$

test: build ## the tests of all packages; with CI=1, as continuous integration runs them
	@HOST='$(HOST)' scripts/test.sh "$(DATA)"

test-all: ## also slow and repetitive tests
	@GLASSHOUSE_TEST=all $(MAKE) test
	cd deploy && CGO_ENABLED=0 $(GO) test -tags apiserver ./...
	[ "$$(id -u)" != 0 ] || $(MAKE) --no-print-directory cluster
	CGO_ENABLED=1 $(GO) test -race -vet=off -p 1 -timeout 60m ./...

# By default the race detector waits one second at the exit of a process (atexit_sleep_ms). Less
# frequent garbage collection (GOGC) makes the run faster.
test-fast: ## fast tests that need neither root nor jails, with the race detector; needs a C compiler
	@CGO_ENABLED=1 GORACE=atexit_sleep_ms=10 GOGC=800 $(GO) test -race -vet=off -ldflags=-w -p $$((2 * $$(nproc))) \
		-skip "^($$(grep -v '^#' test/slow.txt | paste -sd '|'))\$$" $$($(GO) list ./... | grep -vE "$(HOST)")

fuzz: ## run all fuzz targets in rotation, FUZZTIME each (60s); stops at the first failure
	@scripts/fuzz.sh

# The container image is used by the step container, which the suite has only on amd64.
VM_ARCH := $(or $(GLASSHOUSE_VM_ARCH),$(ARCH))

vm: ## the package on an emulated machine, from installation to purge; slow, needs QEMU
	@$(MAKE) --no-print-directory ARCH=$(VM_ARCH) $(if $(filter arm64,$(VM_ARCH)),build,image)
	@GLASSHOUSE_VM_ARCH=$(VM_ARCH) scripts/vm.sh suite

bench: setup build ## benchmarks, compared with similar programs
	@scripts/bench.sh "$(DATA)"

example: build ## run examples/places end to end
	@GLASSHOUSE_DATA="$(DATA)" examples/places/run.sh

docs: build ## docs/reference/cli.md, the index of the decisions, and the documentation site; needs Node
	bin/glasshouse docs > docs/reference/cli.md
	@scripts/decisions.sh > docs/project/decisions/README.md.new && mv docs/project/decisions/README.md.new docs/project/decisions/README.md
	@scripts/docs.sh

clean: ## remove build results
	rm -rf bin cmd/glasshouse/embedded/*/glasshouse-*
