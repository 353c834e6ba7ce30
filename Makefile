# Nothing but Go, make and a C compiler is needed: what else the targets use they install, into the
# system as root, else into the user's cache.

LINT_VERSION := v2.15.0
TOOLS := $(or $(XDG_CACHE_HOME),$(if $(HOME),$(HOME)/.cache),$(CURDIR)/.tools)/callq/tools
LINT := $(TOOLS)/golangci-lint-$(LINT_VERSION)
SERVERS := go run ./internal/local/servers --

.DEFAULT_GOAL := help
.PHONY: help build demo check test lint vet race fmt docs exact exact-short faults loss limits kill kill-night model sim sim-night latency bench bench-claims bench-reads bench-check

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1	/p' $(MAKEFILE_LIST) | expand -t 12

build: ## build ./callq, one static binary
	CGO_ENABLED=0 go build ./cmd/callq

demo: ## 500 calls against an API that allows 100 per 10 s, with servers of its own
	go run ./cmd/callq demo

check: vet ## the quick part of test: vet, and every test without the race detector
	$(SERVERS) go test ./...

test: lint vet race ## all that a change must pass

lint: $(LINT) ## the linters of .golangci.yml
	$(LINT) run

vet: ## go vet
	go vet ./...
	go vet -tags e2e ./internal/e2e

race: ## every test, with the race detector
	$(SERVERS) go test -race -timeout 8m ./...

model: ## every state of a small model of the protocol, against every rule: under a minute
	go test -run TestTidyLosesNothing ./internal/model
	GOMAXPROCS=2 go run ./internal/model/check

# What runs the built program from outside takes minutes, each with servers of its own.
E2E := go test -tags e2e -count=1 ./internal/e2e -v
# What lays a network needs ip, and root.
IP := command -v ip >/dev/null || [ "$$(id -u)" != 0 ] || apt-get install -y -q iproute2

exact-short: ## the exactness scenarios, once each, side by side: never over, exact counts
	$(E2E) -timeout 3m -run 'TestExact'

exact: ## the same one after the other, three rounds each: prints the share of the limit used
	$(E2E) -timeout 40m -run 'TestExact' -figures 3

faults: ## servers, dispatchers and workers killed, frozen and flushed under load
	$(E2E) -timeout 3m -run 'TestDispatch|TestWorker|TestRedis|TestPostgres|TestTerminate|TestServers|TestHangUp|TestTwoQueues|TestOnce|TestRolling'

loss: ## workers and API on two hosts with a network between them that loses packets: never over. As root
	@$(IP)
	$(E2E) -timeout 3m -run 'TestPacketLoss'

limits: ## limits per key, by cost and of concurrency, with 8 dispatchers, kills, 24 queues: never over
	$(E2E) -timeout 5m -run 'TestLimits|TestBackpressure'

# SEED=… replays the kills of a round that failed.
kill: ## 28 random faults under load (kills, freezes, locks, lost packets, clock steps, promotions), then an oracle on what the API saw
	@$(IP)
	$(E2E) -timeout 8m -run 'TestKill$$' -kills 28 -seed $(or $(SEED),0)

kill-night: ## the same with 500, in five rounds: most of an hour
	@$(IP)
	$(E2E) -timeout 2h -run 'TestKill$$' -kills 100 -rounds 5 -seed $(or $(SEED),0)

latency: ## prints the time from an insert to the handler's start, on an idle system
	$(E2E) -timeout 5m -run 'TestIdlePickUp' -figures 3

bench: ## callq beside River: inserts and drain, a table; ARGS="-n 10000 -rounds 1" and the like
	go run -C bench . $(ARGS)

bench-claims: ## what a claim takes among few and many calls and keys, and under a held snapshot
	go run -C bench . -claims

bench-reads: ## what status, get, why and lists take among 1,000,000 calls, however they lie
	go run -C bench . -reads $(ARGS)

bench-check: $(LINT) ## what bench runs, small: it lints, and every call gets done
	cd bench && $(LINT) run
	go vet -C bench ./...
	go test -C bench -count=1 -timeout 2m ./...

# A seed that fails prints the command that replays it.
SIM := $(SERVERS) go test -count=1 ./internal/sim -v -timeout 12h

sim: ## 200 seeds of the simulation, and proof that it notices rules that are turned off
	$(SIM) -run 'TestSimulation|TestMutants' -seeds 200 -mutants

sim-night: ## 20,000 seeds of it, for hours
	$(SIM) -run TestSimulation -seeds 20000

docs: ## write docs/configuration.md, docs/cli.md and the schema that doctor expects anew, from the code
	UPDATE=1 go test -count=1 ./internal/config -run 'TestReference$$'
	UPDATE=1 go test -count=1 ./cmd/callq -run 'TestReference$$'
	UPDATE=1 $(SERVERS) go test -count=1 ./internal/doctor -run 'TestSchemaFingerprints$$'

fmt: $(LINT) ## format as the linters want it
	$(LINT) fmt
	cd bench && $(LINT) fmt

# Built in a module of its own, so that neither go.mod nor a workspace changes what is built.
$(LINT):
	mkdir -p $(@D)/src
	cd $(@D)/src && printf 'module tools\n\ngo 1.26.0\n\nrequire github.com/golangci/golangci-lint/v2 $(LINT_VERSION)\n' >go.mod && \
		GOWORK=off GOFLAGS=-mod=mod CGO_ENABLED=0 go build -o $@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint
	rm -r $(@D)/src
