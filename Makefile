# One command each; `make check` is all that a change must pass.
SHELL := /bin/bash
GO ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS := -s -w -X main.version=$(VERSION)
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOLANGCI := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

# The race detector comes with pointer checks, which double the time of SQLite's
# translated C and have nothing to say about our code there.
RACE := -race -gcflags='modernc.org/...=-d=checkptr=0'

.PHONY: build test test-short test-engine chaos rollouts lint run bench fuzz check generate test-deps

build: ## the binary, static
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags "$(LDFLAGS)" -o bin/sluice ./cmd/sluice

test: test-deps ## everything that runs on one machine: Go with -race, stores, SDKs, browser, Prometheus
	$(GO) vet ./...
	$(GO) test $(RACE) -timeout 20m ./...

test-short: ## what needs no other program
	$(GO) test -short ./...

test-engine: ## two real engines as two variants; downloads a small model package
	scripts/test-engine.sh

CHAOS ?= 10m
chaos: ## replicas that fail in every way, under load, for CHAOS; every failed request is accounted for
	SLUICE_CHAOS=$(CHAOS) $(GO) test -count=1 -v -timeout 2h -run '^TestChaos$$' ./internal/e2e

rollouts: ## bad canaries, a shared outage, a killed leader, no traffic: three replicas under load; then 600 simulated rollouts
	SLUICE_ROLLOUT=1 $(GO) test -count=1 -v -timeout 1h -run 'BadCanaries|SharedOutage|HealthyCanary|NoTraffic' ./internal/e2e
	SLUICE_INTERLEAVE=1000 $(GO) test -count=1 -v -timeout 1h -run TestInterleavings ./internal/control
	SLUICE_SOAK=300 $(GO) test -count=1 -v -timeout 2h -run 'TestSoak|TestDetection' ./experiment/ramp

test-deps: ## what the tests start: Redis, PostgreSQL, Prometheus, Chromium, the SDKs
	scripts/test-deps.sh

run: ## the demo
	$(GO) run ./cmd/sluice demo

lint:
	@test -z "$$(gofmt -l .)" || { gofmt -l .; echo "run gofmt -w on these"; exit 1; }
	$(GO) vet ./...
	$(GO) run $(STATICCHECK) ./...
	$(GO) run $(GOLANGCI) run

bench: ## Go benchmarks of the hot path
	$(GO) test -run '^$$' -bench . -benchmem ./experiment ./router ./upstream/... ./metrics ./server

FUZZTIME ?= 20s
fuzz: ## each fuzz target for FUZZTIME
	@for pkg in $$($(GO) list ./...); do \
	  for f in $$($(GO) test -list '^Fuzz' $$pkg | grep ^Fuzz); do \
	    echo "== $$pkg $$f"; $(GO) test -run '^$$' -fuzz "^$$f$$" -fuzztime $(FUZZTIME) $$pkg || exit 1; \
	  done; done

generate:
	$(GO) generate ./...

check: lint test fuzz
