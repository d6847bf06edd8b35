# Glasshouse. `make up` on a fresh machine, `make check test` before a push; the
# rest is what those are made of.

SHELL := /bin/bash
DATA  ?= $(if $(filter 0,$(shell id -u)),/var/lib/glasshouse,$(HOME)/.local/share/glasshouse)
LISTEN ?= 127.0.0.1:8082
export CGO_ENABLED := 0

GO      ?= go
LDFLAGS := -s -w -X glasshouse/cli.version=$(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)

.PHONY: fuzz lint vm help up down build deb image images ui sdk test test-fast test-all check generate bench setup example docs clean
.DEFAULT_GOAL := help

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t12

up: ## install what is missing, build, start the daemon, run a demo jail
	@scripts/up.sh "$(DATA)" "$(LISTEN)"

down: ## stop the daemon that `make up` started; jails go on
	@scripts/down.sh "$(DATA)"

setup: ## install what is missing, and no more
	@scripts/setup.sh "$(DATA)" $(WITH)

# What is built is for this machine, or with ARCH=arm64 or ARCH=amd64 for another; then it is
# in bin/ARCH. Each has a directory for what is embedded, so that none gets the other's.
HOSTARCH := $(shell $(GO) env GOHOSTARCH)
ARCH     ?= $(HOSTARCH)
BIN      := $(if $(filter $(HOSTARCH),$(ARCH)),bin,bin/$(ARCH))
EMBEDDED := cmd/glasshouse/embedded/$(ARCH)

build: ## bin/glasshouse
ifeq ($(filter amd64 arm64,$(ARCH)),)
	$(error Glasshouse is for amd64 and arm64, not for $(ARCH): it has no programs for the kernel and no tables of calls for that)
endif
	@mkdir -p $(BIN) $(EMBEDDED)
	GOARCH=$(ARCH) $(GO) build -trimpath -ldflags '-s -w' -o $(EMBEDDED)/glasshouse-init ./cmd/glasshouse-init
	GOARCH=$(ARCH) $(GO) build -trimpath -ldflags '-s -w' -o $(EMBEDDED)/glasshouse-agent ./cmd/glasshouse-agent
	GOARCH=$(ARCH) $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN)/glasshouse ./cmd/glasshouse

deb: build ## a Debian package, bin/glasshouse_*.deb
	@scripts/deb.sh $(BIN)/glasshouse bin

image: build ## a container image, bin/glasshouse_*.oci.tar
	@$(GO) run ./packaging/image $(BIN)/glasshouse bin

images: ## one image for amd64 and arm64; wants qemu-user-static for the other
	@$(MAKE) --no-print-directory ARCH=amd64 build
	@$(MAKE) --no-print-directory ARCH=arm64 build
	@$(GO) run ./packaging/image $(if $(filter amd64,$(HOSTARCH)),bin/glasshouse bin/arm64/glasshouse,bin/amd64/glasshouse bin/glasshouse) bin

ui: ## the UI, from web/ui into web/dist; wants Node
	@scripts/ui.sh

sdk: ## the clients in sdk/, from the API; wants Node
	@scripts/sdk.sh

screenshots: build ## docs/images, of the UI as it is built; wants Chromium
	@mkdir -p docs/images
	GLASSHOUSE_DATA="$(DATA)" GLASSHOUSE_SCREENSHOTS=$(CURDIR)/docs/images $(GO) test -count=1 -run '^TestScreenshots$$' ./test

generate: ## the programs for the kernel and the tables of calls; wants clang-14 and libbpf-dev
	$(GO) generate ./observe/... ./enforce

check: build lint ## lint, formatting, generated files, clients, the other processor
	@scripts/ui.sh install
	@scripts/check.sh "$(DATA)"

lint: ## vet, staticcheck, nilness, lock analysis (checklocks), effects in heads of if
	@scripts/lint/run.sh

# Packages whose tests start jails or daemons, or change the host.
HOST := ^glasshouse/(test|snapshot|backend/.*|agent/spawn|engine/jailed|engine/native|e2b/envd|enforce|observe/(bodies|kernel|network|gvisor|ptrace)|observe|jailinit|host/.*|cmd/.*|packaging/.*)$$

test: build ## the tests of all packages; continuous integration runs this and check
	@HOST='$(HOST)' scripts/test.sh "$(DATA)"

test-all: ## also what takes long and repeats
	@GLASSHOUSE_TEST=all $(MAKE) test
	CGO_ENABLED=1 $(GO) test -race -vet=off -p 1 -timeout 60m ./...

# The race detector waits a second when a process exits, unless GORACE says otherwise.
# Less garbage collection (GOGC) makes the run faster.
test-fast: ## with the race detector, what needs neither root nor jails and is not slow; wants a C compiler
	@CGO_ENABLED=1 GORACE=atexit_sleep_ms=10 GOGC=800 $(GO) test -race -vet=off -p $$((2 * $$(nproc))) \
		-skip "^($$(grep -v '^#' test/slow.txt | paste -sd '|'))\$$" $$($(GO) list ./... | grep -vE "$(HOST)")

fuzz: ## run all fuzz targets in rotation, FUZZTIME each (60s); stops at a find
	@scripts/fuzz.sh

# The container image is for the step container, which the suite has only on amd64.
VM_ARCH := $(or $(GLASSHOUSE_VM_ARCH),$(ARCH))

vm: ## the package on an emulated machine, from installation to purge; slow, wants QEMU
	@$(MAKE) --no-print-directory ARCH=$(VM_ARCH) $(if $(filter arm64,$(VM_ARCH)),build,image)
	@GLASSHOUSE_VM_ARCH=$(VM_ARCH) scripts/vm.sh suite

bench: setup build ## benchmarks, side by side with their peers; ratios
	@scripts/bench.sh "$(DATA)"

example: build ## examples/places, from end to end
	@GLASSHOUSE_DATA="$(DATA)" examples/places/run.sh

docs: build ## docs/cli.md from the commands' own help
	bin/glasshouse docs > docs/cli.md

clean: ## what the build made
	rm -rf bin cmd/glasshouse/embedded/*/glasshouse-*
