package sim

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/callq/callq/internal/ledger/verify"
	"github.com/jackc/pgx/v5"
)

// callRecord is what the producer knows of a call that it inserted, and what became of it.
type callRecord struct {
	id      int64
	queue   string
	key     string
	cost    int64
	unique  string // "": none
	expires bool
	later   bool // an attempt ended with the API's own delay
	unread  int  // refusals that the worker could not count
	given   bool // somebody cancelled it: a failover may have lost that
	fate
}

// fate is what a failover can undo.
type fate struct {
	gone      bool // deleted by an operator, or retired
	cancelled bool
}

func final(status string) bool {
	return status == "done" || status == "failed" || status == "cancelled"
}

// planProducers spreads the inserts over the first part of the stretches, some in bursts.
func (w *world) planProducers() {
	for left := w.set.calls; left > 0; {
		n := min(left, pick(w, 1, 3, 10, 30, 100))
		if w.set.kind == crowd {
			n = min(left, pick(w, 30, 100, 300, 1000))
		}
		left -= n
		at := w.moment(0.8)
		if w.chance(0.2) {
			at = pick(w, w.set.stretches...)
		}
		w.at(at, func() { w.insert(n) })
	}
}

// insert writes calls with times of the simulation's: the defaults are now(), which is real.
func (w *world) insert(n int) {
	type column struct {
		queues, tasks, keys []string
		uniques             []*string
		costs               []int64
		priorities          []int16
		most                []*int32
		delays, lives       []*time.Duration
	}
	var c column
	for range n {
		queue := w.set.rules.Queues[w.rng.IntN(len(w.set.rules.Queues))]
		task := "http"
		if w.set.own && w.chance(0.4) {
			task = "own"
		}
		cost := int64(1)
		if w.chance(0.5) {
			cost = min(w.rng.Int64N(3)+1, w.set.rules.Limits[0].Rate.Units)
		}
		var most *int32
		if w.chance(0.1) {
			m := int32(w.intBetween(1, 6))
			most = &m
		}
		var delay, life *time.Duration
		if d := w.between(0, w.set.window); w.chance(0.2) {
			delay = &d
		}
		if d := w.between(0, 3*w.set.window); w.chance(0.05) {
			life = &d
		}
		c.queues, c.tasks, c.costs = append(c.queues, queue.Name), append(c.tasks, task), append(c.costs, cost)
		c.keys = append(c.keys, pick(w, w.set.keys...))
		c.priorities, c.most = append(c.priorities, int16(w.rng.IntN(10))), append(c.most, most)
		c.delays, c.lives = append(c.delays, delay), append(c.lives, life)
		var unique *string
		if w.set.unique && w.chance(min(0.3, 30/float64(w.set.calls))) {
			unique = new(queue.Name + pick(w, " one", " two", " three"))
		}
		c.uniques = append(c.uniques, unique)
	}
	holders := w.holders()
	rows, err := w.lane.workers.Query(w.ctx, insertSQL, c.queues, c.tasks, c.keys, c.costs, c.priorities, c.most, c.delays, c.lives, c.uniques)
	w.must(err)
	inserted, err := pgx.CollectRows(rows, pgx.RowToStructByPos[struct{ ID, N int64 }])
	w.must(err)
	var of []int
	for _, row := range inserted {
		i := int(row.N - 1)
		of = append(of, i)
		r := &callRecord{id: row.ID, queue: c.queues[i], key: c.keys[i], cost: c.costs[i], expires: c.lives[i] != nil}
		w.calls[row.ID] = r
		w.inserted++
		w.note(row.ID, "", "inserted into %s, key %q, task %s, cost %d", c.queues[i], c.keys[i], c.tasks[i], c.costs[i])
		if c.uniques[i] != nil {
			r.unique = *c.uniques[i]
			if other := holders[r.unique]; other != 0 {
				w.fail("a unique key has one unfinished call", other, "", "calls %d and %d have %q", other, row.ID, r.unique)
			}
			holders[r.unique] = row.ID
		}
	}
	for i, unique := range c.uniques {
		if !slices.Contains(of, i) && (unique == nil || holders[*unique] == 0) {
			w.fail("an insert is refused for a reason", 0, "", "number %d of %d was not inserted", i, n)
		}
	}
	w.wake(0.5)
	w.stir()
}

// holders are the unfinished calls that have a unique key, as their statuses say.
func (w *world) holders() map[string]int64 {
	holders := map[string]int64{}
	if !w.set.unique {
		return holders
	}
	for id, row := range w.readCalls() {
		if c := w.calls[id]; c.unique != "" && !final(row.Status) {
			if other := holders[c.unique]; other != 0 {
				w.fail("a unique key has one unfinished call", id, "", "calls %d and %d have %q", other, id, c.unique)
			}
			holders[c.unique] = id
		}
	}
	return holders
}

const insertSQL = `
INSERT INTO call_queue (queue, task, key, cost, priority, max_attempts, created_at, run_at, expires_at, unique_key, call_data)
SELECT queue, task, key, cost, priority, most, clock_timestamp(), clock_timestamp() + coalesce(delay, '0'), clock_timestamp() + life,
    uniq, jsonb_build_object('n', n, 'url', 'http://api/')
FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::smallint[], $6::int[], $7::interval[], $8::interval[], $9::text[])
    WITH ORDINALITY AS c (queue, task, key, cost, priority, most, delay, life, uniq, n)
ORDER BY n
ON CONFLICT (coalesce(queue, 'default'), unique_key) WHERE unique_key IS NOT NULL DO NOTHING
RETURNING id, (call_data ->> 'n')::bigint`

// callRow and attemptRow are the tables as they stand.
type callRow struct {
	ID          int64      `db:"id"`
	Status      string     `db:"status"`
	FailedCount int        `db:"failed_count"`
	MaxAttempts *int       `db:"max_attempts"`
	RunAt       time.Time  `db:"run_at"`
	FinishedAt  *time.Time `db:"finished_at"`
	Error       *string    `db:"error_message"`
}

func (w *world) readCalls() map[int64]*callRow {
	rows, err := w.lane.workers.Query(w.ctx,
		`SELECT id, status, failed_count, max_attempts, run_at, finished_at, error_message FROM call_queue ORDER BY id`)
	w.must(err)
	list, err := pgx.CollectRows(rows, pgx.RowToAddrOfStructByName[callRow])
	w.must(err)
	calls := map[int64]*callRow{}
	for _, row := range list {
		calls[row.ID] = row
	}
	return calls
}

type attemptRow struct {
	CallID     int64     `db:"call_id"`
	Attempt    int32     `db:"attempt"`
	Outcome    string    `db:"outcome"`
	ClaimedAt  time.Time `db:"claimed_at"`
	FinishedAt time.Time `db:"finished_at"`
}

func (w *world) readAttempts() map[int64][]attemptRow {
	rows, err := w.lane.workers.Query(w.ctx,
		`SELECT call_id, attempt, outcome, claimed_at, finished_at FROM call_attempts ORDER BY call_id, attempt`)
	w.must(err)
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[attemptRow])
	w.must(err)
	attempts := map[int64][]attemptRow{}
	for _, row := range list {
		attempts[row.CallID] = append(attempts[row.CallID], row)
	}
	return attempts
}

// check holds the tables against what was inserted and what the API answered. It may be done at
// any moment.
func (w *world) check() {
	calls, attempts := w.readCalls(), w.readAttempts()
	for _, id := range slices.Sorted(maps.Keys(w.calls)) {
		c, row := w.calls[id], calls[id]
		if c.gone {
			continue
		}
		if row == nil {
			w.fail("nothing vanishes", id, "", "call %d is not there", id)
		}
		w.checkCall(c, row, attempts[id])
	}
}

func (w *world) checkCall(c *callRecord, row *callRow, attempts []attemptRow) {
	q := w.set.queue(c.queue)
	most := q.MaxAttempts
	if row.MaxAttempts != nil {
		most = *row.MaxAttempts
	}
	failed, permanent, lost, done := 0, false, false, false
	refused, mostRefused := 0, cmp.Or(q.MaxRefusals, 1000)
	for i, a := range attempts {
		word := func(e ending) bool { return w.api.answered[answer{callAttempt{c.id, a.Attempt}, e}] }
		switch a.Outcome {
		case "done":
			done = true
			if !word(doneEnding) {
				w.fail("what is done was answered", c.id, "", "attempt %d of call %d is done", a.Attempt, c.id)
			}
		case "refused":
			refused++
			if !word(laterEnding) {
				w.fail("what is refused was answered so", c.id, "", "attempt %d of call %d is refused", a.Attempt, c.id)
			}
		case "error", "lost", "permanent":
			failed++
			if a.Outcome == "permanent" {
				permanent = true
				if !word(permanentEnding) && (!word(laterEnding) || refused+1 < mostRefused) {
					w.fail("a call fails for a reason", c.id, "", "call %d failed after %d of %d refusals", c.id, refused+1, mostRefused)
				}
			}
			lost = lost || a.Outcome == "lost"
			if low, _ := backoff(q.BackoffMin, q.BackoffMax, failed); i+1 < len(attempts) && !c.later &&
				attempts[i+1].ClaimedAt.Before(a.FinishedAt.Add(low)) {
				w.fail("a retry waits for its backoff", c.id, "", "attempt %d was claimed %s after the last", attempts[i+1].Attempt,
					attempts[i+1].ClaimedAt.Sub(a.FinishedAt))
			}
		}
	}
	expired := c.expires && row.Error != nil && strings.Contains(*row.Error, "expired")
	gaveUp := permanent || lost && q.OnLost == "fail" || expired || failed >= most || w.tooDear(c)
	switch {
	case row.FailedCount != failed || failed > most:
		w.fail("failures are counted and bounded", c.id, "", "%d attempts failed, counted %d, of %d", failed, row.FailedCount, most)
	case refused >= mostRefused+c.unread:
		w.fail("refusals are bounded", c.id, "", "%d attempts were refused, of %d", refused, mostRefused)
	case row.Status == "cancelled" && !c.given:
		w.fail("a call is cancelled for a reason", c.id, "", "nobody cancelled call %d", c.id)
	case row.Status != "cancelled" && c.cancelled:
		w.fail("what is cancelled stays cancelled", c.id, "", "call %d is %s", c.id, row.Status)
	case row.Status != "cancelled" && (row.Status == "done") != done:
		w.fail("a call is done when an attempt is", c.id, "", "call %d is %s, done %t", c.id, row.Status, done)
	case row.Status == "failed" && !gaveUp:
		w.fail("a call fails for a reason", c.id, "", "call %d failed after %d of %d failures", c.id, failed, most)
	case row.Status == "error" && !c.later && row.FinishedAt != nil:
		_, high := backoff(q.BackoffMin, q.BackoffMax, failed)
		if last := attempts[len(attempts)-1].Outcome; last != "not_sent" && row.RunAt.Sub(*row.FinishedAt) > high {
			w.fail("a retry waits for its backoff", c.id, "", "it waits %s, at most %s", row.RunAt.Sub(*row.FinishedAt), high)
		}
	}
}

// tooDear says whether a call costs more than some limit of its queue has ever allowed in one window.
func (w *world) tooDear(c *callRecord) bool {
	for _, l := range w.api.limits {
		for _, v := range l.versions {
			if v.byCost && v.units < c.cost && strings.Contains(v.queues, c.queue+" ") {
				return true
			}
		}
	}
	return false
}

// backoff is the bounds of the delay after the n-th failure: it doubles up to the longest, and half
// of it is chance.
func backoff(low, high time.Duration, n int) (time.Duration, time.Duration) {
	d := low
	for range n - 1 {
		d = min(2*d, high)
	}
	d = min(d, high)
	return d/2 - time.Microsecond, d + time.Microsecond
}

// verify is `callq verify`, beside everything else.
func (w *world) verify() {
	w.check()
	report, err := verify.Run(w.ctx, w.lane.workers, verify.Options{})
	w.must(err)
	for _, f := range report.Findings {
		// By a clock that shows some time twice, windows and usage of both add up; and what was open at a
		// failover is charged for longer than claims had counted it. The API knows better.
		if (w.back || w.failedOver) && (strings.Contains(f.Rule, "usage") || strings.Contains(f.Rule, "window")) {
			continue
		}
		// Nor does such a clock tell what was in force when an attempt was claimed.
		if w.back && (strings.Contains(f.Rule, "charge") || strings.Contains(f.Rule, "takes")) {
			continue
		}
		w.fail("verify finds nothing", f.CallID, f.Limit, "%s: attempt %d of call %d, %s", f.Rule, f.Attempt, f.CallID, f.Detail)
	}
}
