package backlog

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// Ask is how many calls are wanted of a flow.
type Ask struct {
	Flow
	Want int64
}

// Entry is a call's place in a flow.
type Entry struct {
	Ask   int64 `db:"ask"` // the place in the asks
	Seq   int64 `db:"seq"` // its segment
	Place int32 `db:"place"`
	ID    int64 `db:"id"`
}

// Call is a call that may be claimed. Its row is locked.
type Call struct {
	Entry
	ReadyAt time.Time `db:"ready_at"`
	Cost    int64     `db:"cost"`
	Refusal *string   `db:"refusal"` // what is wrong with it, if anything
	Unread  bool      `db:"-"`       // there was no time to see what is wrong with its call_data: Read does
}

// First locks the first calls of each flow, at most as many as are wanted of it, and returns those that may be claimed, flow by
// flow. It skips rows that another transaction holds. passed are the entries at the same places that may not be claimed, and
// ended ones behind them: give them to Requeue. Calls with more than maxData bytes of call_data are refused. Once checking that
// has taken readFor, the other calls come unread.
func First(
	ctx context.Context, tx pgx.Tx, queue string, now time.Time, maxData int64, readFor time.Duration, asks []Ask,
) (calls []Call, passed []Entry, err error) {
	rows, _ := tx.Query(ctx, firstSQL, named(queue, asks, pgx.StrictNamedArgs{"now": now, "most": maxData, "read_for": readFor}))
	if calls, err = pgx.CollectRows(rows, pgx.RowToStructByName[Call]); err != nil {
		return nil, nil, fmt.Errorf("lock the first calls: %w", err)
	}
	found := make([]int64, len(asks))
	here, twice := make(map[Entry]bool, len(calls)), make(map[int64]bool, len(calls))
	calls = slices.DeleteFunc(calls, func(c Call) bool {
		if twice[c.ID] {
			return true
		}
		found[c.Ask]++
		here[c.Entry], twice[c.ID] = true, true
		return false
	})
	for i := range calls {
		if c := &calls[i]; c.Refusal != nil && *c.Refusal == "" {
			c.Refusal, c.Unread = nil, true
		}
	}
	passed, err = pass(ctx, tx, queue, asks, found, here)
	return calls, passed, err
}

// skipMost is how many ended calls a claim passes beside those that it asked for. A limit may let it ask for one at a time.
// Behind a million cancelled calls, it would take hours to find the next that waits.
const skipMost = 4096

// pass returns the entries that were asked for and are not here. If nothing of a flow is, it also returns the ended ones behind
// them, up to the first that waits. found is how many of each flow are here.
func pass(
	ctx context.Context, tx pgx.Tx, queue string, asks []Ask, found []int64, here map[Entry]bool,
) (passed []Entry, err error) {
	short, some, empty := slices.Clone(asks), false, int64(0) // only those whose calls did not all come
	for i, n := range found {
		if n == min(short[i].Want, short[i].Calls) {
			short[i].Want = 0
			continue
		}
		some = true
		if n == 0 {
			empty++
		}
	}
	if !some {
		return nil, nil
	}
	for i, n := range found {
		if l := &short[i]; n == 0 && l.Want > 0 {
			l.Want = min(l.Want+skipMost/empty, l.Calls)
		}
	}
	rows, _ := tx.Query(ctx, passSQL, named(queue, short, pgx.StrictNamedArgs{}))
	entries, err := pgx.CollectRows(rows, pgx.RowToStructByName[struct {
		Entry
		Waits bool `db:"waits"`
	}])
	if err != nil {
		return nil, fmt.Errorf("read the first entries: %w", err)
	}
	seen, stopped := make([]int64, len(asks)), make([]bool, len(asks))
	for _, e := range entries {
		seen[e.Ask]++
		stopped[e.Ask] = stopped[e.Ask] || e.Waits && seen[e.Ask] > asks[e.Ask].Want
		if !here[e.Entry] && !stopped[e.Ask] {
			passed = append(passed, e.Entry)
		}
	}
	return passed, nil
}

const passSQL = entriesSQL + `
SELECT e.ask, e.seq, e.place, e.id, q.id IS NOT NULL AS waits
FROM entries e
LEFT JOIN LATERAL (SELECT id FROM call_queue WHERE id = e.id AND status IN ('new', 'error') OFFSET 0) q ON true
ORDER BY e.ask, e.seq, e.place`

// ReadFor is how long a claim looks at call_data, by default.
const ReadFor = 250 * time.Millisecond

// Read checks calls that came unread, however long it takes.
func Read(ctx context.Context, tx pgx.Tx, maxData int64, calls ...*Call) error {
	ids := column(calls, func(c *Call) int64 { return c.ID })
	rows, _ := tx.Query(ctx, readSQL, pgx.StrictNamedArgs{"ids": ids, "most": maxData})
	flaws, err := pgx.CollectRows(rows, pgx.RowTo[*string])
	if err != nil {
		return fmt.Errorf("read call_data: %w", err)
	}
	for i, flaw := range flaws {
		calls[i].Refusal, calls[i].Unread = flaw, false
	}
	return nil
}

// named adds the arguments of entriesSQL.
func named(queue string, asks []Ask, args pgx.StrictNamedArgs) pgx.StrictNamedArgs {
	args["queue"] = queue
	args["keys"], args["priorities"], args["tasks"] = names(column(asks, func(a Ask) Flow { return a.Flow }))
	args["heads"] = column(asks, func(a Ask) int64 { return a.Head })
	args["consumed"] = column(asks, func(a Ask) int32 { return a.Consumed })
	args["wants"] = column(asks, func(a Ask) int64 { return a.Want })
	return args
}

// entriesSQL reads segments through their primary key, in its order, and no more than it needs: nothing is sorted between the
// index and the LIMIT (TestPlans).
const entriesSQL = `
WITH entries AS MATERIALIZED (
    SELECT a.n - 1 AS ask, e.seq, e.place::int AS place, e.id, a.key, a.priority, a.task
    FROM unnest(@keys::text[], @priorities::smallint[], @tasks::text[], @heads::bigint[], @consumed::int[], @wants::bigint[])
        WITH ORDINALITY AS a (key, priority, task, head, consumed, want, n)
    CROSS JOIN LATERAL (
        SELECT w.seq, i.place, i.id
        FROM (
            SELECT seq, ids FROM call_segments
            WHERE queue = @queue AND key = a.key AND priority = a.priority AND task = a.task AND seq >= a.head
            ORDER BY seq
        ) w
        CROSS JOIN LATERAL unnest(w.ids) WITH ORDINALITY AS i (id, place)
        WHERE w.seq > a.head OR i.place > a.consumed
        LIMIT a.want
    ) e
)`

// firstSQL reads call_data only if it may be over the bound: a number of 10 bytes may print 131,072 digits, and compressed data
// says nothing of its length. It reads for a limited time, by the real clock, or a claim might never end. On a busy machine, that
// time may not suffice for one call: so a claim reads one more (Read). A call that moved to another flow has an entry there too.
const firstSQL = entriesSQL + `
SELECT e.ask, e.seq, e.place, e.id, coalesce(q.cost, 1) AS cost,
    greatest(coalesce(q.run_at, q.created_at), timestamptz '0001-01-01 00:00:00Z') AS ready_at,
    CASE
    WHEN q.expires_at <= @now THEN 'expired: not sent by ' || q.expires_at
    WHEN q.priority <> callq_priority(q.priority) THEN 'priority ' || q.priority || ' is not within 0 to 9'
    WHEN q.cost < 1 THEN 'cost ' || q.cost || ' is below 1'
    WHEN q.max_attempts < 1 THEN 'max_attempts ' || q.max_attempts || ' is below 1'
    WHEN pg_column_size(q.call_data) * 13107::bigint > @most::bigint OR pg_column_compression(q.call_data) IS NOT NULL THEN CASE
        WHEN pg_catalog.clock_timestamp() > pg_catalog.statement_timestamp() + @read_for::interval THEN ''
        ELSE ` + tooLongSQL + `
        END
    END AS refusal
FROM entries e
CROSS JOIN LATERAL (
    SELECT * FROM call_queue c
    WHERE c.id = e.id
      AND c.status IN ('new', 'error')
      AND coalesce(c.run_at, c.created_at) <= @now
      AND coalesce(c.queue, 'default') = @queue AND coalesce(c.key, '') = e.key
      AND callq_priority(c.priority) = e.priority AND coalesce(c.task, 'http') = e.task
    FOR UPDATE SKIP LOCKED
) q
ORDER BY e.ask, e.seq, e.place`

// tooLongSQL measures the text of call_data, which a worker loads and an API gets. If few bytes could be much text, or the data
// is compressed, Postgres might take seconds to print it, or fail. Then the size of the value, which is at most 4 times the text,
// and the digits of large numbers come first.
const tooLongSQL = `CASE
        WHEN (pg_column_size(q.call_data) > 4096 OR pg_column_compression(q.call_data) IS NOT NULL)
            AND (pg_column_size(q.call_data #> '{}') > 5 * @most::bigint + 100 OR ` + digitsSQL + ` > @most::bigint)
            THEN 'call_data has more than ' || @most::bigint || ' bytes, which is the limit'
        WHEN octet_length(q.call_data::text) > @most::bigint
            THEN 'call_data has ' || octet_length(q.call_data::text) || ' bytes, over the limit of ' || @most::bigint
        END`

// digitsSQL is a lower bound of what numbers print as, short by a tenth at most. It costs about as much as skipping over them.
const digitsSQL = `(SELECT coalesce(sum(scale(n::numeric) + CASE
                WHEN abs(n::numeric) < 1e100 THEN 0 WHEN abs(n::numeric) < 1e1000 THEN 100
                WHEN abs(n::numeric) < 1e10000 THEN 1000 WHEN abs(n::numeric) < 1e100000 THEN 10000 ELSE 100000 END), 0)
            FROM jsonb_path_query(q.call_data, 'strict $.** ? (@.type() == "number")') AS n)`

const readSQL = `
SELECT ` + tooLongSQL + `
FROM unnest(@ids::bigint[]) WITH ORDINALITY AS a (id, n)
CROSS JOIN LATERAL (SELECT call_data FROM call_queue c WHERE c.id = a.id OFFSET 0) q
ORDER BY a.n`

// Requeue puts calls back into the inbox that still wait, but could not be locked or are not due after all.
func Requeue(b *pgx.Batch, ids []int64) {
	if len(ids) > 0 {
		b.Queue(requeueSQL, ids)
	}
}

// Whoever holds a call may be done with it in a moment. The clock may have been set back since the call was due.
const requeueSQL = `
INSERT INTO call_inbox (queue, at, task, key, priority, calls, ids)
SELECT coalesce(queue, 'default'), greatest(coalesce(run_at, created_at), clock_timestamp() + interval '50 milliseconds'),
    coalesce(task, 'http'), coalesce(key, ''), callq_priority(priority), 1, ARRAY[id]
FROM call_queue
WHERE id = ANY($1::bigint[]) AND status IN ('new', 'error')`
