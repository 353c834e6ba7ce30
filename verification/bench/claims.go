package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/policy"
	"github.com/callq/callq/internal/schema"
	"github.com/callq/callq/migrations"
)

// scene is what a dispatcher finds when it claims 100 calls.
type scene struct {
	name    string
	fill    string // SQL
	perKey  bool   // a limit per key, which keys named b… have used up
	running int    // attempts, of as many keys
	refill  string // before each claim
	held    bool   // somebody holds an old snapshot
	claims  int
}

func scenes() []scene {
	return []scene{
		{name: "1,000 waiting, one key", fill: `INSERT INTO call_queue (key) SELECT 'k' FROM generate_series(1, 1000)`, refill: oneKey, claims: 200},
		{name: "1,000,000 waiting, one key", fill: `INSERT INTO call_queue (key) SELECT 'k' FROM generate_series(1, 1000000)`, refill: oneKey, claims: 200},
		{name: "1,000,000 waiting, 1,000 keys", fill: `INSERT INTO call_queue (key) SELECT 'k' || i % 1000 FROM generate_series(1, 1000000) i`, refill: oneKey, claims: 200},
		{name: "200,000 waiting, 100,000 keys", fill: `INSERT INTO call_queue (key) SELECT 'k' || i % 100000 FROM generate_series(1, 200000) i`, refill: oneKey, claims: 200},
		{name: "the same, all blocked but ten", fill: `INSERT INTO call_queue (key) SELECT 'b' || i % 100000 FROM generate_series(1, 200000) i`, perKey: true, refill: tenKeys, claims: 200},
		{name: "200,000 waiting, 1,000 keys, each with a limit, while 4,000 run", fill: `INSERT INTO call_queue (key) SELECT 'k' || i % 1000 FROM generate_series(1, 200000) i`, perKey: true, running: 4000, refill: oneKey, claims: 200},
		{name: "1,000 waiting, a snapshot held for 4,000 claims", fill: `INSERT INTO call_queue (key) SELECT 'k' FROM generate_series(1, 1000)`, refill: oneKey, held: true, claims: 4000},
	}
}

const (
	oneKey  = `INSERT INTO call_queue (key) SELECT 'k' FROM generate_series(1, 100)`
	tenKeys = `INSERT INTO call_queue (key) SELECT 'f' || i % 10 FROM generate_series(1, 100) i`
)

// claims measures what a claim of 100 calls takes in each scene: the median of all, and of the first and the
// last tenth.
func (b *bench) claims(ctx context.Context, out io.Writer) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "a claim of 100 calls, ms\tmedian\tfirst tenth\tlast tenth")
	for _, s := range scenes() {
		fmt.Fprintln(b.say, s.name)
		err := b.servers.withDatabase(ctx, func(url string) error {
			took, err := b.claimIn(ctx, url, s)
			if err != nil {
				return err
			}
			tenth := len(took) / 10
			fmt.Fprintf(table, "%s\t%.2f\t%.2f\t%.2f\n", s.name, median(took), median(took[:tenth]), median(took[len(took)-tenth:]))
			return nil
		})
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return table.Flush()
}

func median(took []time.Duration) float64 {
	sorted := slices.Sorted(slices.Values(took))
	return float64(sorted[len(sorted)/2]) / float64(time.Millisecond)
}

func (b *bench) claimIn(ctx context.Context, url string, s scene) (took []time.Duration, err error) {
	pool, err := openPool(ctx, url, ledger.Settings())
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	if _, err := migrations.Up(ctx, pool.Config().ConnConfig, schema.Names{}); err != nil {
		return nil, err
	}
	options, err := redis.ParseURL(b.servers.redisURL())
	if err != nil {
		return nil, err
	}
	client := redis.NewClient(options)
	defer client.Close()
	d, err := dispatcher.New(dispatcher.Config{Pool: pool, Redis: client, Policy: s.rules()})
	if err != nil {
		return nil, err
	}
	if err := d.Once(ctx); err != nil { // publishes, and opens the limit
		return nil, err
	}
	if _, err := pool.Exec(ctx, s.fill); err != nil {
		return nil, err
	}
	if _, err := pool.Exec(ctx, aWorkerSQL, s.running); err != nil {
		return nil, err
	}
	for _, sql := range []string{usedUpSQL, fmt.Sprintf(runningSQL, s.running), `VACUUM ANALYZE`} {
		if _, err := pool.Exec(ctx, sql); err != nil {
			return nil, err
		}
	}
	if err := settle(ctx, pool, d); err != nil {
		return nil, err
	}
	if s.held {
		holder, err := pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
		if err != nil {
			return nil, err
		}
		defer holder.Rollback(context.WithoutCancel(ctx))
		for _, sql := range []string{`SET LOCAL idle_in_transaction_session_timeout = 0`, `SELECT count(*) FROM call_queue`} {
			if _, err := holder.Exec(ctx, sql); err != nil {
				return nil, err
			}
		}
	}
	claimed := 100
	for range s.claims {
		for ; claimed >= 100; claimed -= 100 {
			if _, err := pool.Exec(ctx, s.refill); err != nil {
				return nil, err
			}
		}
		begun := time.Now()
		if _, err := d.Step(ctx, false); err != nil {
			return nil, err
		}
		took = append(took, time.Since(begun))
		n, err := finishOpen(ctx, pool)
		if err != nil {
			return nil, err
		}
		if claimed += n; n < 100 { // more, where those before ended at once
			return nil, fmt.Errorf("a claim opened %d attempts, fewer than 100", n)
		}
	}
	return took, nil
}

func (s scene) rules() policy.Policy {
	q := policy.Queue{
		Name: "default", MaxAttempts: 3, BackoffMin: time.Second, BackoffMax: time.Minute, Timeout: time.Minute, OnLost: "retry",
	}
	if !s.perKey {
		return policy.Policy{Queues: []policy.Queue{q}}
	}
	q.Limits = []string{"each"}
	each := policy.Limit{Name: "each", Rate: limit.Rate{Units: 1_000_000, Window: time.Hour}, PerKey: true}
	return policy.Policy{Limits: []policy.Limit{each}, Queues: []policy.Queue{q}}
}

// A worker with 100 free slots.
const aWorkerSQL = `
INSERT INTO callq.call_workers (id, pool, tasks, labels, slots, started_at, heartbeat_at)
VALUES ('bench', 'http', '{http}', '{}', 100 + $1, now(), now() + interval '1 hour')`

// What runs has negative ids, which finishOpen leaves, and a batch that is not yet behind any claim.
const runningSQL = `
INSERT INTO callq.call_open (call_id, attempt, message_no, batch, cost, claimed_at, handed_at, start_by, started_at, deadline, send_within,
    epoch, pool, queue, task, key, limits, keys, costs)
SELECT -i, 1, 0, 1000000000, 1, now(), now(), now(), now(), now() + interval '1 hour', '1 s',
    callq.epoch(), 'http', 'default', 'http', 'k' || i, '{each}', ARRAY['k' || i], '{1}'
FROM generate_series(1, %d) i`

const usedUpSQL = `
INSERT INTO callq.call_usage (limit_name, key, bucket, shard, used)
SELECT 'each', key, now(), 0, 1000000 FROM (SELECT DISTINCT key FROM call_queue WHERE key LIKE 'b%') k`

// settle lets looks take in what there is, and put aside what is blocked.
func settle(ctx context.Context, pool *pgxpool.Pool, d *dispatcher.Dispatcher) error {
	for begun := time.Now(); time.Since(begun) < 5*time.Minute; {
		if _, err := d.Step(ctx, false); err != nil {
			return err
		}
		if _, err := finishOpen(ctx, pool); err != nil {
			return err
		}
		var left bool
		if err := pool.QueryRow(ctx, settledSQL).Scan(&left); err != nil {
			return err
		}
		if !left {
			_, err := pool.Exec(ctx, `VACUUM ANALYZE`)
			return err
		}
	}
	return errors.New("after 5 minutes looks still find news, or more blocked keys than a claim looks at")
}

// As many lines as a claim looks at are not put aside.
const settledSQL = `
SELECT EXISTS (SELECT FROM callq.call_inbox WHERE at <= now())
    OR (SELECT count(*) FROM callq.call_flows WHERE key LIKE 'b%' AND wake_at IS NULL) >= 256`

// finishOpen ends what was claimed, without a ledger.
func finishOpen(ctx context.Context, pool *pgxpool.Pool) (n int, err error) {
	err = pool.QueryRow(ctx, finishOpenSQL).Scan(&n)
	return n, err
}

const finishOpenSQL = `
WITH gone AS (DELETE FROM callq.call_open WHERE call_id > 0 RETURNING call_id),
done AS (UPDATE call_queue SET status = 'done', finished_at = now() WHERE id = ANY (ARRAY(SELECT call_id FROM gone)))
SELECT count(*) FROM gone`
