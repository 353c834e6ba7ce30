package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/callq/callq/internal/local"
	"github.com/callq/callq/verification/npmpostgres"
	"github.com/callq/callq/verification/packages"
)

// setup is one way to run Postgres and Redis.
type setup struct {
	name, version string // as docs/deploying.md has them, as settings
	works         string // yes where it is empty
	settings      string // of callq's, or else of the server's, that it needs
	short         bool   // -short runs it
	debian        []string
	npm           string // the version of Postgres, of npm's
	redis         string // the oldest version of redis-server that will do
	run           func(ctx context.Context, on *stage) (saw string, err error)
}

// servers are what a set-up has brought up.
type servers struct {
	postgres string // callq's section postgres, in YAML's flow style, as redis
	redis    string
	admin    string // a URL for the calls' inserts and what is read in the end; it leads to whoever is the primary
	// fault is caused when a third of the calls has been made. It returns once it is over.
	fault func(ctx context.Context, w *world) error
	// after looks at what is the set-up's own, once all calls are done.
	after func(ctx context.Context, w *world) error
	// failsOver is whether the fault is a failover, which loses nothing.
	failsOver bool
	// doctor is the exit code of `callq doctor` in the end.
	doctor int
}

// Exit codes of callq's.
const (
	exitUsage       = 2
	exitFindings    = 3
	exitUnreachable = 5
)

// What callq needs where the primary may move.
const severalHosts = "several hosts in `postgres.url`, `target_session_attrs=read-write`"

// setups are all of them, in the order of docs/deploying.md.
func setups() []setup {
	return []setup{
		{name: "Postgres 15", version: "15", run: underLoad(postgresOf(""))},
		{name: "Postgres 16", version: "16", npm: "16", run: underLoad(postgresOf("16"))},
		{name: "Postgres 17", version: "17", npm: "17", run: underLoad(postgresOf("17"))},
		{name: "Postgres 18", version: "18", npm: "18", run: underLoad(postgresOf("18"))},
		{name: "pg_repack, pg_dump, a publication of all tables", version: "15", settings: "`-t` for each table in pg_repack", debian: []string{"postgresql-15-repack"}, run: underLoad(tools)},
		{name: "promoted standby", version: "15", settings: severalHosts, short: true, run: underLoad(promotedStandby)},
		{name: "Patroni switchover", version: "3.0", settings: severalHosts, debian: patroniPackages(), run: underLoad(patroniSwitchover)},
		{name: "Patroni with a lost primary", version: "3.0", settings: severalHosts + "; `synchronous_mode` in Patroni", debian: patroniPackages(), run: underLoad(patroniKill)},
		{name: "hot standby as the URL", version: "15", run: hotStandby},
		{name: "pgbouncer in transaction mode", version: "1.18", settings: "`postgres.query_mode`, `postgres.direct_url`", short: true, debian: []string{"pgbouncer"}, run: underLoad(pgbouncerTransaction)},
		{name: "pgbouncer in session mode", version: "1.18", settings: "`ignore_startup_parameters` below", debian: []string{"pgbouncer"}, run: underLoad(pgbouncerSession)},
		{name: "pgbouncer in statement mode", version: "1.18", works: "no", debian: []string{"pgbouncer"}, run: pgbouncerRefused},
		{name: "pgpool-II without load balancing", version: "4.3", settings: "`load_balance_mode = off` in pgpool", debian: []string{"pgpool2"}, run: underLoad(pgpool(false))},
		{name: "pgpool-II with load balancing", version: "4.3", settings: "`allow_sql_comments = off` in pgpool, as by default", debian: []string{"pgpool2"}, run: underLoad(pgpool(true))},
		{name: "Redis", version: "7.0", run: underLoad(redisAlone)},
		{name: "Redis over TLS", version: "7.0", settings: "`redis.tls`", short: true, run: underLoad(redisTLS)},
		{name: "Redis user with an ACL", version: "7.0", settings: "the rights below", run: underLoad(redisACL)},
		{name: "Redis Sentinel", version: "7.0", settings: "`redis.sentinel`", short: true, run: underLoad(sentinelFailover)},
		{name: "Redis Cluster", version: "7.0", settings: "`redis.cluster`", short: true, run: underLoad(clusterSlotMoves)},
		{name: "Redis that evicts", version: "7.0", works: "in part", run: underLoad(redisEvicts)},
		{name: "Redis that is full for a while", version: "7.0", run: underLoad(redisFull)},
		{name: "Redis 8", version: "8", works: untried, redis: "8", run: underLoad(redisAlone)},
		{name: "Valkey", version: "8", works: untried, debian: []string{"valkey-server"}, run: underLoad(valkeyAlone)},
	}
}

// untried is what could not be had when docs/deploying.md was written. Where it can, it has to work.
const untried = "untried"

// install installs what a set-up needs beside Postgres and Redis, which ./install does.
func (s setup) install(ctx context.Context) error {
	if s.npm != "" {
		_, err := npmpostgres.Install(ctx, s.npm)
		if errors.Is(err, npmpostgres.ErrMissing) {
			return errors.Join(packages.ErrMissing, err)
		}
		return err
	}
	if s.redis != "" {
		return redisSince(ctx, s.redis)
	}
	return packages.Debian(ctx, s.debian...)
}

// redisSince is nil if the installed redis-server is of this version or a later one.
func redisSince(ctx context.Context, version string) error {
	program, err := local.FindRedis()
	if err != nil {
		return err
	}
	out, err := program.Command(ctx, program.Name, "--version").Output()
	if err != nil {
		return err
	}
	_, rest, _ := strings.Cut(string(out), " v=")
	major, _, _ := strings.Cut(rest, ".")
	has, err := strconv.Atoi(major)
	if err != nil {
		return fmt.Errorf("%s says %q", program.Name, out)
	}
	if least, err := strconv.Atoi(version); err != nil || has < least {
		return fmt.Errorf("redis %s %w: %s %d is installed", version, packages.ErrMissing, program.Name, has)
	}
	return nil
}
