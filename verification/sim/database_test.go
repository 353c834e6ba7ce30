package sim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/callq/callq/internal/handoff"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/pgtest"
	"github.com/hibiken/asynq"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
)

// lane is a database and a Redis, on which one world after the other runs. It owns what Postgres
// tells the time from: every unqualified clock_timestamp() and callq.epoch() is the simulation's.
type lane struct {
	dispatchers *pgxpool.Pool
	workers     *pgxpool.Pool // another, so that usage is spread over more than one shard
	redis       *miniredis.Miniredis
	client      *redis.Client
	broker      *handoff.Broker

	clock string // what the next statement reads, as timestamptz
	epoch string

	saveSQL, restoreSQL string
}

// Each connection keeps the time in a setting: the function is then as cheap as the real one.
const clockSQL = `
CREATE SCHEMA sim;
CREATE FUNCTION sim.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS
    $$ SELECT current_setting('sim.clock')::timestamptz $$;
CREATE OR REPLACE FUNCTION callq.epoch() RETURNS text LANGUAGE sql STABLE AS
    $$ SELECT current_setting('sim.epoch') $$`

func newLane(t testing.TB) *lane {
	t.Helper()
	l := &lane{clock: "2030-01-01", epoch: "1-1", redis: miniredis.RunT(t)}
	l.client = redis.NewClient(&redis.Options{Addr: l.redis.Addr(), MaxRetries: -1})
	t.Cleanup(func() { _ = l.client.Close() })
	url := pgtest.NewURL(t)
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), clockSQL+tablesSQL); err != nil {
		t.Fatal(err)
	}
	if err := l.prepareCopies(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.dispatchers, l.workers = l.connect(t, url), l.connect(t, url)
	return l
}

// Nothing but the seed may decide what a plan is and where a row lies.
const tablesSQL = `;
DO $$ DECLARE name text; BEGIN
    FOR name IN SELECT format('%I.%I', schemaname, tablename) FROM pg_tables WHERE schemaname IN ('callq', 'public') LOOP
        EXECUTE format('ALTER TABLE %s SET (autovacuum_enabled = off)', name);
    END LOOP;
END $$`

func (l *lane) connect(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 2
	config.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
	maps.Copy(config.ConnConfig.RuntimeParams, ledger.Settings())
	config.ConnConfig.RuntimeParams["search_path"] = "sim,public,pg_catalog"
	config.ConnConfig.RuntimeParams["synchronous_commit"] = "off" // claims set their own
	config.PrepareConn = func(ctx context.Context, conn *pgx.Conn) (bool, error) {
		now := l.clock + l.epoch
		if conn.PgConn().CustomData()["now"] == now {
			return true, nil
		}
		if _, err := conn.Exec(ctx, setClockSQL, l.clock, l.epoch); err != nil {
			return false, fmt.Errorf("set the clock: %w", err)
		}
		conn.PgConn().CustomData()["now"] = now
		return true, nil
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

const setClockSQL = `SELECT set_config('sim.clock', $1, false), set_config('sim.epoch', $2, false)`

// clear empties what the world before left behind.
func (l *lane) clear(ctx context.Context) error {
	l.redis.SetError("")
	l.redis.FlushAll()
	if _, err := l.workers.Exec(ctx, clearSQL); err != nil {
		return err
	}
	// A failover that loses what was committed first would give the database another id.
	l.broker = handoff.New(l.client, l.workers, slog.New(slog.DiscardHandler))
	return l.broker.Open(ctx)
}

// pending are the ids of the messages that wait for a pool, the oldest last.
func (l *lane) pending(pool string) []string {
	ids, err := l.redis.List("asynq:{" + l.broker.Queue(pool) + "}:pending")
	if err != nil { // there is no such list
		return nil
	}
	return ids
}

// take takes a pool's oldest message.
func (l *lane) take(pool string) (m handoff.Message, ok bool, err error) {
	ids := l.pending(pool)
	if len(ids) == 0 {
		return m, false, nil
	}
	inspector, queue := asynq.NewInspectorFromRedisClient(l.client), l.broker.Queue(pool)
	task, err := inspector.GetTaskInfo(queue, ids[len(ids)-1])
	if err != nil {
		return m, false, err
	}
	m, err = handoff.Read(pool, asynq.NewTask(task.Type, task.Payload))
	return m, true, errors.Join(err, inspector.DeleteTask(queue, task.ID))
}

const clearSQL = `
TRUNCATE call_queue, callq.call_clock_gains, callq.call_open, call_attempts, callq.call_limits, callq.call_limit_versions, callq.call_queues, callq.call_pauses,
    callq.call_policies, callq.call_dispatchers, callq.call_audit, callq.call_usage, callq.call_hosts, callq.call_remotes, callq.call_workers, callq.call_epochs, callq.call_meta, callq.call_inbox, callq.call_flows, callq.call_segments RESTART IDENTITY`

// base is when a simulation begins.
var base = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

func (l *lane) setClock(now time.Time) { l.clock = now.Format("2006-01-02 15:04:05.000000+00") }
