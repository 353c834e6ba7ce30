# You need Go, make and a C compiler. The targets install whatever else they use: as root into the
# system, otherwise into your cache.

LINT_VERSION := v2.15.0
TOOLS := $(or $(XDG_CACHE_HOME),$(if $(HOME),$(HOME)/.cache),$(CURDIR)/.tools)/callq/tools
LINT := $(TOOLS)/golangci-lint-$(LINT_VERSION)
PROMTOOL_VERSION := v0.316.0
PROMTOOL := $(TOOLS)/promtool-$(PROMTOOL_VERSION)
INSTALL = go run -C verification $(RACE) ./install
# PG=16, 17 or 18: npm's Postgres of that version instead of the installed one.
SERVERS = go run -C verification $(RACE) ./servers $(addprefix -pg ,$(PG))

# What of verification/ `make test` runs. The rest has targets of its own.
JUDGES := ./fakeapi ./install ./model/... ./npmpostgres ./oracle ./servers ./setups ./sim

# These have no goroutines, but for the model's explorers: the race detector would see nothing there, and take most of their
# time. Everything else is built with it, these tools too: building go-redis a second time takes half a minute.
PLAIN := "/(internal/(hours|limit)|verification/model(/check)?)$$"

.DEFAULT_GOAL := help
.PHONY: help build demo deps check test fuzz lint alerts vet fmt docs exact exact-short faults stalls-short stalls apis-short apis producers producers-short servers servers-short pages loss limits kill runs runs-short kill-night model sim sim-night campaigns forecast latency bench bench-plot bench-budgets bench-claims bench-paced bench-limited bench-reads bench-long bench-check long

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1	/p' $(MAKEFILE_LIST) | expand -t 12

build: ## build ./callq, one static binary
	CGO_ENABLED=0 go build ./cmd/callq

demo: ## 500 calls against an API that allows 100 per 10 s, with servers of its own
	@$(INSTALL) postgres
	go run ./cmd/callq demo

deps: ## install what the tests need: Postgres, Redis, pgbouncer, faketime
	@$(INSTALL)

check: vet deps ## the quick part of test: vet, and every test without the race detector
	$(SERVERS) -C .. go test ./...
	$(SERVERS) go test $(JUDGES)

# Those that take longest come first, and as many packages at a time as there are cores: one more took a third longer.
LONGEST := ./dispatcher ./cmd/callq ./tasks ./internal/handoff
TEST := go test -p $(shell getconf _NPROCESSORS_ONLN) -vet=all -timeout 11m

test: RACE := -race
test: ## every test with go vet's checks, and with the race detector what has goroutines. PG=16, 17 or 18: on that Postgres
	go build -race ./...
	@$(INSTALL)
	$(SERVERS) -C .. sh -c '$(TEST) -race $(LONGEST) $$(go list ./... | grep -vE $(PLAIN))'
	$(SERVERS) sh -c '$(TEST) -race $$(go list $(JUDGES) | grep -vE $(PLAIN))'
	$(TEST) $$(go list ./... | grep -E $(PLAIN))
	cd verification && $(TEST) ./model/...
	cd verification && $(TEST) -race -run TestExplorersAgree ./model

fuzz: ## what APIs may say of when to come again, at random for 10 s
	go test ./internal/httptask -run '^$$' -fuzz FuzzWait -fuzztime 10s

lint: $(LINT) ## the linters of .golangci.yml
	$(LINT) run
	cd verification && $(LINT) run

alerts: deps $(PROMTOOL) ## promtool on deploy/grafana: each alert fires in a staged fault of the built program, and stays silent where little is missing: a minute and a half. ARGS="-only CallqLimitFull,CallqClockOff" for some
	$(PROMTOOL) check rules deploy/grafana/alerts.yaml
	cd deploy/grafana && $(PROMTOOL) test rules alerts_test.yaml
	$(SERVERS) go run ./alerts -promtool $(PROMTOOL) $(ARGS)

vet: ## go vet
	go vet ./...
	go vet -C verification -tags e2e ./...

model: ## every state of a small model of the protocol, against every rule: under a minute
	go test -C verification -run 'TestTidyLosesNothing|TestStandstill' ./model
	GOMAXPROCS=2 go run -C verification ./model/check

# What runs the built program from outside takes minutes, each with servers of its own.
E2E := go test -C verification -tags e2e -count=1 ./e2e -v
# What lays a network needs ip, and root.
IP := command -v ip >/dev/null || [ "$$(id -u)" != 0 ] || apt-get install -y -q iproute2

# The servers of TestStalls and TestAPIs.
SERVED_BY := apt-get install -y -q --no-install-recommends nodejs gunicorn nginx-light haproxy apache2 caddy >/dev/null
SERVED := [ "$$(id -u)" != 0 ] || $(SERVED_BY) || { apt-get update -q >/dev/null; $(SERVED_BY); }

exact-short: deps ## the exactness scenarios, once each, side by side: never over, exact counts
	$(E2E) -timeout 3m -run 'TestExact'

exact: deps ## the same one after the other, three rounds each: prints the share of the limit used
	$(E2E) -timeout 40m -run 'TestExact' -figures 3

faults: deps ## servers, dispatchers and workers killed, frozen and flushed under load
	$(E2E) -timeout 3m -run 'TestDispatch|TestWorker|TestRedis|TestPostgres|TestTerminate|TestServers|TestHangUp|TestTwoQueues|TestOnce|TestRolling'

stalls-short: deps ## gunicorn and node stand still, once each: their programs never read more than the limit. As root
	@$(SERVED)
	$(E2E) -timeout 5m -run 'TestStalls'

stalls: deps ## the same with nginx, HAProxy and Apache, in each of their stalls: prints the most in a window and the use, that of slow APIs too, and what closing idle connections loses. As root; an hour. ARGS="-plain" for a plain client, "-callq PATH" for another build
	@$(SERVED)
	$(E2E) -timeout 120m -parallel 20 -run 'TestStalls|TestUseOfSlowAPIs|TestIdleConnections' -figures $(or $(ROUNDS),2) $(ARGS)

apis-short: deps ## APIs that count otherwise than callq (nginx, HAProxy, GCRA) or close for a while: no call fails of it. As root
	@$(SERVED)
	$(E2E) -timeout 5m -parallel 8 -run 'TestAPIs'

# Packages of npm, Go and Debian. A limiter that cannot be had is left out.
apis: deps ## 1,000 calls each before real limiters, with the default and with the limit that fits: writes the table in docs/apis.md. As root; twenty minutes
	@$(SERVED)
	UPDATE=1 $(E2E) -timeout 60m -parallel 2 -run 'TestAPIs' -figures 2 $(ARGS)

# The ORMs' packages are npm's, Go's and, as verification/producers/*/apt name them, Debian's. One that cannot be had is left out.
producers: deps ## ORMs and drivers write calls as callq_producer: nothing is made twice, lost or blocked. ARGS="-only gorm,django" for some. As root
	$(SERVERS) go run ./producers $(ARGS)

producers-short: deps ## the same with those that CI runs
	$(SERVERS) go run ./producers -short $(ARGS)

# Each has servers of its own. Their packages are Debian's and npm's. One that cannot be had is left out.
servers: deps ## the set-ups of Postgres and Redis of docs/deploying.md, each with its fault in the middle: never over, nothing lost. ARGS="-only Patroni,Redis" for some. As root; five minutes
	go run -C verification ./setups $(ARGS)

servers-short: deps ## the same with those that CI runs, and fewer calls
	go run -C verification ./setups -short $(ARGS)

# Chromium is Debian's, axe-core npm's.
pages: deps ## the pages in Chromium, over 1,000,000 calls: no barrier, each button does what it says; prints what answers and viewers take. ARGS=-short: 20,000 calls. ARGS="-screenshots ../docs/pages" for pictures. As root; eight minutes
	$(SERVERS) go run ./pages $(ARGS)

loss: deps ## workers and API on two hosts with a network between them that loses packets: never over. As root
	@$(IP)
	$(E2E) -timeout 3m -run 'TestPacketLoss|TestThreadOutlivesItsHost'

runs-short: deps ## limits whose units come one by one: never sooner than they allow
	$(E2E) -timeout 5m -run 'TestRuns$$|TestKeysInRuns'

runs: deps ## the same, long enough for the figures of calls a second and CPU a call
	$(E2E) -timeout 15m -run 'TestRuns$$|TestKeysInRuns' -figures 2

limits: deps ## limits per key, by cost and of concurrency, shares, with 8 dispatchers, kills, 24 queues: never over
	$(E2E) -timeout 8m -run 'TestLimits|TestBackpressure|TestSharesAtTheDoor|TestCapUnderKills|TestReplayIsWhatHappened'

# SEED=… replays the kills of a round that failed.
kill: deps ## 28 random faults under load (kills, freezes, locks, lost packets, clock steps, promotions), then an oracle on what the API saw
	@$(IP)
	$(E2E) -timeout 11m -run 'TestKill$$' -kills 28 -seed $(or $(SEED),0)

kill-night: deps ## the same with 500, in five rounds: most of an hour
	@$(IP)
	$(E2E) -timeout 2h -run 'TestKill$$' -kills 100 -rounds 5 -seed $(or $(SEED),0)

campaigns: deps ## 20 campaigns of 100,000 calls under 500 a second, a number called once at a time, for five minutes: never over
	$(E2E) -timeout 20m -run 'TestLimitsOfCampaigns' -figures 2

forecast: deps ## 20 random set-ups: when `calls why` says that a call starts, and when it does: fails above 5 % at the median
	$(E2E) -timeout 6m -run 'TestForecast'

latency: deps ## prints the time from an insert to the handler's start, on an idle system, and from a freed slot to the next start
	$(E2E) -timeout 5m -run 'TestIdlePickUp|TestFreedSlot' -figures 3

bench: deps ## callq beside River, graphile-worker, pg-boss, Asynq and raw SQL: inserts and drain, tables; ARGS="-n 10000 -rounds 1" and the like
	go run -C verification/bench . $(ARGS)

bench-plot: deps ## the same, and docs/bench.svg, which shows the ratios
	go run -C verification/bench . -plot '$(CURDIR)/docs/bench.svg' $(ARGS)

bench-claims: deps ## what a claim takes among few and many calls and keys, and under a held snapshot
	go run -C verification/bench . -claims

bench-budgets: deps ## draws on budgets, beside redis_rate
	go run -C verification/bench . -budgets

bench-paced: deps ## what an http call costs at 100, 500 and 2,000 a second, beside River and a bare client, by who spends it
	go run -C verification/bench . -paced $(ARGS)

bench-limited: deps ## 5,000 HTTP calls under 100/s and 20,000 under 1,000/s, beside Asynq, BullMQ, River, graphile-worker and pg-boss with limiters: worst window, use, CPU; an hour and a half. ROUNDS=1; ARGS="-short", "-part 0.2", "-only callq,BullMQ" or "-plot FILE"
	go run -C verification/bench . -limited $(if $(ROUNDS),-rounds $(ROUNDS)) $(ARGS)

bench-long: deps ## the drain, retention and verify with 10,000,000 calls of three attempts each behind them: 20 minutes, 15 GB of disk
	go run -C verification/bench . -ended 10000000 $(ARGS)

long: deps ## an hour of calls at 500 a second: what they cost minute by minute, with retention, and with a snapshot held in its middle third. Fails if a rule is broken or a call is not done. ARGS="-for 4m" for a shorter run
	go run -C verification/bench . -hour $(ARGS)

bench-reads: deps ## what status, get, why and lists take among 1,000,000 calls, however they lie
	go run -C verification/bench . -reads $(ARGS)

bench-check: deps $(LINT) ## what bench runs, small: it lints, and every call gets done
	cd verification && $(LINT) run ./bench
	go vet -C verification ./bench
	go test -C verification -count=1 -timeout 5m ./bench

# A seed that fails prints the command that replays it.
SIM := $(SERVERS) go test -count=1 ./sim -v -timeout 12h

SEEDS ?= 200

sim: deps ## SEEDS (200) seeds of the simulation, and proof that it notices rules that are turned off
	$(SIM) -run 'TestSimulation|TestMutants' -seeds $(SEEDS) -mutants

sim-night: deps ## 20,000 seeds of it, for hours
	$(SIM) -run TestSimulation -seeds 20000

docs: deps ## write docs/configuration.md, docs/config.schema.json, docs/cli.md, docs/guarantee-tests.md, docs/windows.svg, the dashboard, the alerts and the schema that doctor expects anew, from the code
	UPDATE=1 go test -count=1 ./docs -run 'TestGuarantees$$'
	UPDATE=1 go test -count=1 ./internal/limit -run 'TestWindows$$'
	UPDATE=1 go test -count=1 ./internal/config -run 'TestReference$$|TestBusted$$|TestSchema$$'
	UPDATE=1 go test -count=1 ./cmd/callq -run 'TestReference$$|TestMetricsTable$$'
	UPDATE=1 go test -count=1 ./deploy/grafana -run 'TestFiles$$'
	UPDATE=1 $(SERVERS) -C .. go test -count=1 ./internal/doctor -run 'TestSchemaFingerprints$$'

fmt: $(LINT) ## format as the linters want it
	$(LINT) fmt
	cd verification && $(LINT) fmt

# Built in modules of their own, so that neither go.mod nor a workspace changes what is built. Each takes minutes.
$(LINT): MODULE := github.com/golangci/golangci-lint/v2 $(LINT_VERSION)
$(LINT): PACKAGE := github.com/golangci/golangci-lint/v2/cmd/golangci-lint
$(PROMTOOL): MODULE := github.com/prometheus/prometheus $(PROMTOOL_VERSION)
$(PROMTOOL): PACKAGE := -tags remove_all_sd github.com/prometheus/prometheus/cmd/promtool
$(LINT) $(PROMTOOL):
	mkdir -p $@-src
	cd $@-src && printf 'module tools\n\ngo 1.26.0\n\nrequire $(MODULE)\n' >go.mod && \
		GOWORK=off GOFLAGS=-mod=mod CGO_ENABLED=0 go build -o $@ $(PACKAGE)
	rm -r $@-src
