// Package recovery finds what a crash, a lost message or a frozen process left behind, and puts it right. Each step acts by
// compare-and-set, so any number of dispatchers may recover at once. A row that errs, or that another transaction holds, stops
// no other: recovery leaves it alone for a while.
package recovery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/callq/callq/internal/backlog"
	"github.com/callq/callq/internal/handoff"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/policy"
	"github.com/callq/callq/internal/schema"
	"github.com/jackc/pgx/v5"
)

const (
	passSize     = 500             // rows of one kind in one pass
	outageGrace  = 6 * time.Second // a worker tries each second to record what ended
	cleanEvery   = time.Minute
	redeliverAge = 5 * time.Second // of a hand-over that Redis no longer has
)

// Config is what a Recoverer works with. All fields are required.
type Config struct {
	Pool   schema.DB
	Sender *handoff.Broker
	Log    *slog.Logger
	Now    func() time.Time    // a clock that is never set
	Random func(n int64) int64 // in [0, n)
}

// Recoverer recovers on behalf of one dispatcher. It is not safe for concurrent use.
type Recoverer struct {
	Config
	isolated    map[int64]time.Time // calls that recovery leaves alone until then: their rows err, or are locked
	lostAfter   time.Time           // until then nothing counts as lost (PostgresAway)
	expireAfter time.Time           // until then expiry need not go through all calls
	cleanAfter  time.Time
	recount     time.Time // of waiting calls
}

// New makes a Recoverer.
func New(cfg Config) *Recoverer {
	return &Recoverer{Config: cfg, isolated: map[int64]time.Time{}}
}

// View is what a dispatcher knows when it recovers.
type View struct {
	OpenFrom int64         // no attempt of a smaller batch is open
	Gained   time.Duration // what Postgres's clock ever gained
}

// Recovered is what one step put right, or would.
type Recovered struct {
	Kind  string `json:"what"`
	Count int64  `json:"count"`
}

// step puts one kind of thing right, at most passSize in one pass.
type step struct {
	kind  string
	run   func(context.Context, View) (int, error)
	count func(context.Context, View) (int64, error) // what run would find if it were repeated to the end; nil: not said
}

func (r *Recoverer) steps() []step {
	return []step{
		{"former_epoch", r.closeFormer, r.counting(overdueCountSQL + formerWhere)},
		{"lost", r.closeLost, r.counting(overdueCountSQL + lostWhere)},
		{"unstarted", r.closeUnstarted, r.counting(overdueCountSQL + unstartedWhere)},
		{"undelivered", r.redeliver, r.countUndelivered},
		{"expired", r.expire, r.counting(expiredCountSQL)},
		{
			"uncounted_limits",
			func(ctx context.Context, v View) (int, error) { return policy.Backfill(ctx, r.Pool, v.Gained) },
			r.counting(`SELECT count(*) FROM (` + policy.UncountedSQL + `) l`),
		},
		{"uncounted_caps", r.countWaiting, r.counting(uncountedCapsSQL)},
		{"abandoned", r.overtake, nil},
		{"unproven", r.prove, nil},
		{"leftovers", r.clean, nil},
	}
}

// PostgresAway notes that Postgres did not answer. For a while nothing counts as lost, so that workers can first record
// what ended meanwhile.
func (r *Recoverer) PostgresAway() { r.lostAfter = r.Now().Add(outageGrace) }

// Pass runs each step once, and calls found for each that recovered something. An error of one step does not keep the others
// from their turn. stop is asked before each step.
func (r *Recoverer) Pass(ctx context.Context, v View, stop func() bool, found func(kind string, n int)) error {
	var failures error
	for _, s := range r.steps() {
		if stop() {
			break
		}
		n, err := s.run(ctx, v)
		if err != nil {
			failures = errors.Join(failures, fmt.Errorf("recover %s: %w", s.kind, err))
		}
		if n > 0 {
			r.Log.InfoContext(ctx, "recovered", "what", s.kind, "count", n)
			found(s.kind, n)
		}
	}
	return failures
}

// All runs every step until it finds nothing more, and repairs the backlog, for which it reads all calls. With dryRun, it only
// counts what that would recover. It then cannot know how many calls of broken flows are in no other flow, and counts every limit
// that is closed until it is counted, though some may have to stay so.
func (r *Recoverer) All(ctx context.Context, v View, dryRun bool) (done []Recovered, err error) {
	repair := backlog.Repair
	if dryRun {
		repair = backlog.FindOrphans
	}
	for _, s := range r.steps() {
		n := int64(0)
		switch {
		case !dryRun:
			n, err = s.exhaust(ctx, v)
		case s.count != nil:
			n, err = s.count(ctx, v)
		}
		if err != nil {
			return done, fmt.Errorf("recover %s: %w", s.kind, err)
		}
		if s.count != nil {
			done = append(done, Recovered{s.kind, n})
		}
	}
	o, err := repair(ctx, r.Pool)
	return append(done, Recovered{"broken_flows", o.Flows}, Recovered{"orphaned_calls", o.Calls}), err
}

// exhaust runs the step until it finds nothing more.
func (s step) exhaust(ctx context.Context, v View) (total int64, err error) {
	for n := passSize; n >= passSize && err == nil; total += int64(n) {
		n, err = s.run(ctx, v)
	}
	return total, err
}

func (r *Recoverer) counting(sql string) func(context.Context, View) (int64, error) {
	return func(ctx context.Context, _ View) (n int64, err error) {
		return n, r.Pool.QueryRow(ctx, sql).Scan(&n)
	}
}

// leftAlone returns the calls that recovery leaves alone now.
func (r *Recoverer) leftAlone() []int64 {
	maps.DeleteFunc(r.isolated, func(_ int64, until time.Time) bool { return until.Before(r.Now()) })
	return slices.AppendSeq([]int64{}, maps.Keys(r.isolated))
}

// isolate leaves a call alone for a minute. The log has the reason and, if it can be written, the row.
func (r *Recoverer) isolate(ctx context.Context, id int64, err error) {
	r.isolated[id] = r.Now().Add(time.Minute)
	r.Log.ErrorContext(ctx, "call isolated", "call", id, "err", err)
	_, _ = r.Pool.Exec(ctx, isolateSQL, id, IsolatedMessage+ledger.Reason(err))
}

// IsolatedMessage begins the error_message of a call that recovery cannot end.
const IsolatedMessage = "callq cannot end it: "

const isolateSQL = `
UPDATE public.call_queue SET error_message = $2
WHERE id = (SELECT id FROM public.call_queue WHERE id = $1 FOR NO KEY UPDATE SKIP LOCKED) AND status IN ('new', 'error', 'dispatched')`

// clean removes what no window needs any more: usage, clock gains, and rows of workers and dispatchers that are long gone. A
// longer window is counted anew from the ledger. Then it removes what Asynq archived or holds for workers that died, and the
// Asynq queues of pools without a worker or an attempt.
func (r *Recoverer) clean(ctx context.Context, v View) (int, error) {
	if r.Now().Before(r.cleanAfter) {
		return 0, nil
	}
	r.cleanAfter = r.Now().Add(cleanEvery)
	var batch pgx.Batch
	batch.Queue(cleanUsageSQL, v.Gained)
	batch.Queue(cleanGainsSQL, v.Gained)
	batch.Queue(cleanWorkersSQL)
	batch.Queue(cleanDispatchersSQL)
	batch.Queue(cleanRemotesSQL)
	batch.Queue(cleanProbesSQL)
	batch.Queue(foldRoutedSQL)
	if err := r.Pool.SendBatch(ctx, &batch).Close(); err != nil {
		return 0, err
	}
	if !r.Sender.Reachable(ctx) {
		return 0, nil
	}
	if err := r.findBeside(ctx); err != nil {
		return 0, err
	}
	rows, _ := r.Pool.Query(ctx, poolsSQL, v.OpenFrom)
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return 0, err
	}
	return r.Sender.Tidy(ctx, names)
}

// findBeside notes that another server's dispatchers take this one's hand-overs, and it theirs. doctor reports it, too.
func (r *Recoverer) findBeside(ctx context.Context) error {
	var mark string
	err := r.Pool.QueryRow(ctx, serverSQL).Scan(&mark)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil // a load balancer has had a standby answer, which is no copy
	} else if err != nil {
		return err
	}
	beside, err := r.Sender.Beside(ctx, mark)
	if err != nil || !beside {
		return err
	}
	r.Log.ErrorContext(ctx, "a copy of this Postgres's files runs beside it and hands over calls through the same Redis: each takes the other's; "+
		"give one of them another Redis, or stop its dispatchers and workers")
	_, err = r.Pool.Exec(ctx, besideSQL)
	return err
}

const serverSQL = `SELECT pg_postmaster_start_time()::text WHERE NOT pg_is_in_recovery()`

const besideSQL = `
INSERT INTO callq.call_meta (name, position) VALUES ('beside', extract(epoch FROM clock_timestamp()))
ON CONFLICT (name) DO UPDATE SET position = excluded.position`

const poolsSQL = `SELECT pool FROM callq.call_workers UNION SELECT pool FROM callq.call_open WHERE batch >= $1`

// Claims open a limit whose probe had an answer; here are those of which nothing more is to be claimed.
const cleanProbesSQL = `
DELETE FROM callq.call_pauses p
USING public.call_attempts a
WHERE p.spell IS NOT NULL AND p.until < clock_timestamp() AND a.call_id = p.call_id AND a.attempt = p.attempt
  AND a.outcome NOT IN ('not_sent', 'lost', 'refused')`

const cleanUsageSQL = `
DELETE FROM callq.call_usage u
USING callq.call_limits l
WHERE u.limit_name = ANY (ARRAY[l.name])
  AND (u.bucket < clock_timestamp() - 2 * l.window_size - interval '1 minute' - $1::interval
    OR u.bucket = ` + limit.UnknownSQL + ` AND u.used = 0)`

// No window reaches back further, not even one that is made twice as long. verify asks for steps back.
const cleanGainsSQL = `
DELETE FROM callq.call_clock_gains
WHERE at < clock_timestamp() - 2 * (SELECT coalesce(max(window_size), '0') FROM callq.call_limits) - $1::interval
    - CASE WHEN by > '0' THEN interval '1 day' ELSE interval '1 year' END`

const cleanWorkersSQL = `DELETE FROM callq.call_workers WHERE heartbeat_at < clock_timestamp() - interval '1 day'`

// Workers lock several, in another order.
const cleanRemotesSQL = `
DELETE FROM callq.call_remotes r
USING (
    SELECT limit_name, key FROM callq.call_remotes WHERE answered_at < clock_timestamp() - interval '1 day' LIMIT 10000 FOR UPDATE SKIP LOCKED
) old
WHERE r.limit_name = old.limit_name AND r.key = old.key`

// A heartbeat that lies ahead is older than the clock's last step back. A live dispatcher's row is back at its next one.
const cleanDispatchersSQL = `
DELETE FROM callq.call_dispatchers
WHERE heartbeat_at NOT BETWEEN clock_timestamp() - interval '1 minute' AND clock_timestamp() + interval '1 minute'`

// foldRoutedSQL adds up what routes did: statements only add rows.
const foldRoutedSQL = `
WITH had AS (
    DELETE FROM callq.call_routed WHERE rule IN (SELECT rule FROM callq.call_routed GROUP BY rule HAVING count(*) > 1) RETURNING *
)
INSERT INTO callq.call_routed (rule, moved, discarded, failed, error, at)
SELECT rule, sum(moved), sum(discarded), sum(failed), (array_agg(error ORDER BY at DESC) FILTER (WHERE error IS NOT NULL))[1], max(at)
FROM had GROUP BY rule`
