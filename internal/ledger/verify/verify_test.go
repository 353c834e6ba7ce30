package verify_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/ledger/ledgertest"
	"github.com/callq/callq/internal/ledger/verify"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/pgtest"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"pgregory.net/rapid"
)

// history is a ledger with every kind of call and attempt, made by Start and Close.
func history(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool := pgtest.New(t)
	took, later := 5*time.Millisecond, time.Millisecond
	sent := &limit.Arrival{By: &took, Written: took, EndBy: &took}
	end := func(id int64, attempt int32, c ledger.Closing) {
		c.CallID, c.Attempt = id, attempt
		if c.Arrival != nil || c.Token != 0 {
			c.Token = 7
			ledgertest.Start(t, pool, ledger.StartRequest{CallID: id, Attempt: attempt, Token: 7, Timeout: time.Second})
		} else {
			c.Unstarted = true
		}
		ledgertest.Close(t, pool, c)
	}
	requests, none := new(int16(1)), new(int16(0))
	done := ledger.Closing{Outcome: callqueue.OutcomeDone, Arrival: sent, Requests: requests, Status: callqueue.StatusDone}
	failed := ledger.Closing{Outcome: callqueue.OutcomeError, Arrival: sent, Status: callqueue.StatusError, Failed: true, Delay: &later}
	lost := ledger.Closing{Outcome: callqueue.OutcomeLost, Arrival: &limit.Arrival{Written: took, Closed: took}, Status: callqueue.StatusFailed, Failed: true}
	unsent := ledger.Closing{Outcome: callqueue.OutcomeNotSent, Status: callqueue.StatusNew}
	permanent := ledger.Closing{Outcome: callqueue.OutcomePermanent, Token: 7, Requests: none, Status: callqueue.StatusFailed, Failed: true}

	end(ledgertest.Open(t, pool), 1, done) // call 1
	retried := ledgertest.Open(t, pool)    // call 2
	end(retried, 1, failed)
	reopen(t, pool, retried)
	end(retried, 2, unsent)
	reopen(t, pool, retried)
	end(retried, 3, done)
	end(ledgertest.Open(t, pool), 1, lost)      // call 3
	end(ledgertest.Open(t, pool), 1, unsent)    // call 4
	end(ledgertest.Open(t, pool), 1, permanent) // call 5
	deleted := ledgertest.Open(t, pool)         // call 6, while it ran
	ledgertest.Start(t, pool, ledgertest.Request(deleted, 7))
	ledgertest.Exec(t, pool, `DELETE FROM call_queue WHERE id = $1`, deleted)
	ledgertest.Close(t, pool, ledger.Closing{CallID: deleted, Attempt: 1, Token: 7, Outcome: callqueue.OutcomeDone, Arrival: sent, Requests: requests})
	cancelled := ledgertest.Open(t, pool) // call 7, while it runs
	ledgertest.Start(t, pool, ledgertest.Request(cancelled, 7))
	ledgertest.Exec(t, pool, `UPDATE call_queue SET status = 'cancelled', finished_at = now() WHERE id = $1`, cancelled)
	ledgertest.Open(t, pool)                                                   // call 8, not started
	ledgertest.Start(t, pool, ledgertest.Request(ledgertest.Open(t, pool), 7)) // call 9, running
	ledgertest.Exec(t, pool, `INSERT INTO call_queue (status) VALUES ('new'), ('failed'), ('cancelled')`)
	ledgertest.Exec(t, pool, `UPDATE callq.call_limits SET count_cost = true, applied_at = now() - interval '1 hour', complete_since = now() - interval '1 hour'`)
	ledgertest.Exec(t, pool, publishedSQL)
	return pool
}

// reopen claims a call again.
func reopen(t *testing.T, pool *pgxpool.Pool, id int64) {
	t.Helper()
	ledgertest.Exec(t, pool, `UPDATE call_queue SET status = 'dispatched', attempts = attempts + 1, dispatched_at = clock_timestamp() WHERE id = $1`, id)
	ledgertest.Exec(t, pool, `INSERT INTO callq.call_open (call_id, attempt, message_no, batch, cost, claimed_at, handed_at, start_by, send_within, epoch, pool,
			queue, task, key, limits, keys, costs)
		SELECT id, attempts, 0, 1, 1, dispatched_at, clock_timestamp(), clock_timestamp() + interval '1 h', '300 ms', callq.epoch(), 'http',
			'default', 'http', '', '{api}', '{""}', '{1}'
		FROM call_queue WHERE id = $1`, id)
}

func run(t *testing.T, db ledgertest.DB) (report *verify.Report) {
	t.Helper()
	var err error
	if tx, ok := db.(pgx.Tx); ok {
		report, err = verify.RunTx(t.Context(), tx, verify.Options{})
	} else {
		report, err = verify.Run(t.Context(), db.(*pgxpool.Pool), verify.Options{})
	}
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// wantBroken verifies that these rules are broken, and no others.
func wantBroken(t *testing.T, db ledgertest.DB, rules ...string) {
	t.Helper()
	broken := map[string]bool{}
	report := run(t, db)
	for _, f := range report.Findings {
		broken[f.Rule] = true
		if strings.Contains(f.Detail, "( to )") {
			t.Errorf("%s: a range of nothing: %s", f.Rule, f.Detail)
		}
	}
	slices.Sort(rules)
	if found := slices.Sorted(maps.Keys(broken)); !slices.Equal(found, rules) {
		t.Errorf("broken rules %q, want %q: %+v", found, rules, report.Findings)
	}
}

//callq:guarantee 6
func TestVerifyCleanHistory(t *testing.T) {
	t.Parallel()
	pool := history(t)
	wantBroken(t, pool)
	report := run(t, pool)
	if report.Calls != 11 || report.Attempts != 11 {
		t.Errorf("%d calls and %d attempts, want 11 and 11", report.Calls, report.Attempts)
	}
	// Started: calls 1, 2 twice, 3, 6 and the two that run; the permanent one sent nothing.
	if len(report.Limits) != 1 || report.Limits[0].Starts != 7 || report.Limits[0].Most != 7 {
		t.Errorf("limits %+v, want one with 7 starts in its fullest window", report.Limits)
	}
	// Options.Since in the future verifies open attempts only.
	if later, err := verify.Run(t.Context(), pool, verify.Options{Since: time.Now().Add(time.Hour)}); err != nil || len(later.Findings) > 0 || later.Attempts != 3 {
		t.Errorf("of what is to come: %+v, %v", later, err)
	}
}

// Every forgery of the history is found, as a breach of the rules that it breaks. dispatcher/forgery_test.go has more.
//
//callq:guarantee 6
func TestVerifyFindsForgeries(t *testing.T) {
	t.Parallel()
	const (
		windows = "no window holds more than the rate"
		request = "an attempt sends at most one request"
		both    = "an attempt is open or in the ledger, not both"
		gaps    = "the attempts of a call have no gap and are as many as its counter says"
		failed  = "failed_count is the number of attempts that failed"
		status  = "the status of a call fits its attempts"
		usage   = "the usage of a limit is what its attempts were charged"
		times   = "a call was dispatched and ended when its last attempt was"
		retried = "a call was retried after attempts that it had"
	)
	cases := []struct {
		name, forgery string
		rules         []string
	}{
		{"the last attempt is missing", `DELETE FROM call_attempts WHERE call_id = 4`, []string{gaps}},
		{"an attempt too many", `UPDATE call_attempts SET attempt = 4 WHERE call_id = 2 AND attempt = 2`, []string{gaps}},
		{"attempts counts one too many", `UPDATE call_queue SET attempts = 2 WHERE id = 1`, []string{gaps}},
		{"attempts counts one too few", `UPDATE call_queue SET attempts = 2 WHERE id = 2`, []string{gaps, times}},
		{"an attempt that is open and ended", `INSERT INTO call_attempts (call_id, attempt, cost, claimed_at, finished_at, outcome, queue, task, key, charged)
			VALUES (8, 1, 1, now(), now(), 'not_sent', 'default', 'http', '', '[]')`, []string{both}},
		{"two requests", `UPDATE call_attempts SET requests = 2 WHERE call_id = 1`, []string{request}},
		{"a failure never recorded", `UPDATE call_attempts SET outcome = 'not_sent' WHERE call_id = 5`, []string{failed}},
		{"a done call that is not", `UPDATE call_queue SET status = 'error' WHERE id = 1`, []string{status}},
		{"dispatched without an open row", `DELETE FROM callq.call_open WHERE call_id = 8`, []string{gaps, status}},
		{"dispatched with the row of another attempt", `UPDATE callq.call_open SET attempt = 2 WHERE call_id = 8`, []string{gaps, status}},
		{"open, and waiting again", `UPDATE call_queue SET status = 'new' WHERE id = 9`, []string{status}},
		{"more starts than the rate", `WITH now AS (UPDATE callq.call_limits SET rate = 6) UPDATE callq.call_limit_versions SET rate = 6`, []string{windows}},
		{"an attempt of double cost", `UPDATE call_attempts SET cost = 5, charged = jsonb_set(charged, '{0,cost}', '5') WHERE call_id = 3`, []string{windows, usage}},
		{"an open attempt of a high cost", `UPDATE callq.call_open SET cost = 5, costs = '{5}' WHERE call_id = 9`, []string{windows}},
		{"usage too high", `UPDATE callq.call_usage SET used = used + 1 WHERE ctid = (SELECT min(ctid) FROM callq.call_usage)`, []string{usage}},
		{"usage too low, just published", `WITH fresh AS (UPDATE callq.call_limits SET applied_at = now(), complete_since = now()) DELETE FROM callq.call_usage`, []string{usage}},
		{"more usage, just published: it was counted under former rules", `WITH fresh AS (UPDATE callq.call_limits SET applied_at = now(), complete_since = now())
			UPDATE callq.call_usage SET used = used + 1`, nil},
		{"retried: how it failed before counts no longer", `UPDATE call_queue SET status = 'new', failed_count = 0, retried_after = attempts WHERE id = 5`, nil},
		{"retried, and failures of before counted", `UPDATE call_queue SET status = 'new', retried_after = attempts WHERE id = 5`, []string{failed}},
		{"retried when it was done", `UPDATE call_queue SET status = 'new', retried_after = attempts WHERE id = 1`, nil},
		{"done by an attempt before it was retried", `UPDATE call_queue SET retried_after = attempts WHERE id = 1`, []string{status}},
		{"ended, with its unique key", `ALTER TABLE call_queue DISABLE TRIGGER USER; UPDATE call_queue SET unique_key = 'u' WHERE id = 1`, []string{status}},
		{"no status at all", `ALTER TABLE call_queue ALTER status DROP NOT NULL; UPDATE call_queue SET status = NULL WHERE id = 1`, []string{status}},
		{"made again by hand", `UPDATE call_attempts SET attempt = 0 WHERE call_id = 1 AND attempt = 1; UPDATE call_queue SET created_at = created_at - interval '1 h' WHERE id = 1; INSERT INTO call_attempts SELECT (jsonb_populate_record(a, '{"attempt": 1}')).* FROM call_attempts a WHERE call_id = 1`, []string{gaps, usage}},
		{"retried after an attempt that it did not have", `UPDATE call_queue SET status = 'new', retried_after = attempts + 1 WHERE id = 4`, []string{retried}},
	}
	pool := history(t)
	for _, c := range cases {
		ledgertest.Trial(t, pool, c.name, func(t *testing.T, tx pgx.Tx) {
			ledgertest.Exec(t, tx, c.forgery)
			wantBroken(t, tx, c.rules...)
		})
	}
}

// charge is an attempt as the oracle sees it; times are ms on one line.
type charge struct {
	Start, Until int
	Ended        int
	Cost         int64
	Settled      int64 // -1: nothing
	Open         bool  // its until is infinite
}

// really is what it cost.
func (c charge) really() int64 {
	if c.Open || c.Settled < 0 {
		return c.Cost
	}
	return c.Settled
}

// change is a version of the limit.
type change struct {
	From, Window int
	Rate         int64 // 0: removed
}

// overAt is the oracle: the units that count in the window that ends with start t, as far as a claim before it
// can have known.
func overAt(charges []charge, t, window int) (known int64) {
	for _, c := range charges {
		if c.Start > t || !c.Open && c.Until <= t-window {
			continue
		}
		if c.Open || c.Ended > t {
			known += c.Cost
		} else {
			known += min(c.Cost, c.really())
		}
	}
	return known
}

// A call that runs for longer than the window keeps no unit where its request is known to have arrived long ago. Where
// that is not known, or a handler may still send, it does.
func TestVerifyBesideLongCalls(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	for _, c := range []struct {
		name, setup string
		most        int64
	}{
		{"started long ago", ``, 1},
		{"started just within its window, send_within and slack", `UPDATE callq.call_limits SET slack = '1.8 s'`, 2},
		{"not acknowledged", `UPDATE callq.call_open SET acked_at = NULL`, 2},
		{"acknowledged late", `UPDATE callq.call_open SET acked_at = started_at + interval '2.5 s'`, 2},
		{"anchored at the finish", `UPDATE callq.call_limits SET anchor = 'finish'`, 2},
		{"a custom handler", `UPDATE callq.call_open SET task = 'mine'`, 2},
		{"of an older epoch: it will be charged by its start", `UPDATE callq.call_limits SET epoch = 'former'`, 1},
	} {
		ledgertest.Trial(t, pool, c.name, func(t *testing.T, tx pgx.Tx) {
			ledgertest.Start(t, tx, ledgertest.Request(ledgertest.Open(t, tx), 7))
			ledgertest.Start(t, tx, ledgertest.Request(ledgertest.Open(t, tx), 8))
			ledgertest.Exec(t, tx, `UPDATE callq.call_open SET started_at = now() - CASE token WHEN 7 THEN interval '5 s' ELSE interval '2 s' END, claimed_at = now() - interval '5 s'`)
			ledgertest.Exec(t, tx, `UPDATE call_queue SET dispatched_at = claimed_at FROM callq.call_open WHERE call_id = id`)
			ledgertest.Exec(t, tx, `UPDATE callq.call_open SET acked_at = started_at + interval '10 ms'`)
			ledgertest.Exec(t, tx, `UPDATE callq.call_limits SET rate = 1, window_size = '1 s'`)
			if c.setup != "" {
				ledgertest.Exec(t, tx, c.setup)
			}
			ledgertest.Exec(t, tx, publishedSQL)
			report := run(t, tx)
			if report.Limits[0].Most != c.most || (len(report.Findings) > 0) != (c.most > 1) {
				t.Errorf("most in a window: %d, want %d; found %v", report.Limits[0].Most, c.most, report.Findings)
			}
		})
	}
}

// Run and an oracle that judges each start by itself agree about the windows.
//
//callq:guarantee 6
func TestVerifyWindows(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	zero := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(ms int) time.Time { return zero.Add(time.Duration(ms) * time.Millisecond) }
	charges := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) charge {
		start := rapid.IntRange(0, 60).Draw(t, "start")
		return charge{
			start, start + rapid.IntRange(0, 20).Draw(t, "for"), start + rapid.IntRange(1, 25).Draw(t, "ended after"),
			rapid.Int64Range(1, 3).Draw(t, "cost"), rapid.Int64Range(-1, 5).Draw(t, "settled"), rapid.IntRange(0, 9).Draw(t, "open") == 0,
		}
	}), 0, 20)
	changes := rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) change {
		return change{
			rapid.IntRange(-5, 60).Draw(t, "from"), rapid.IntRange(1, 30).Draw(t, "window"), rapid.Int64Range(0, 12).Draw(t, "rate"),
		}
	}), 1, 4, func(c change) int { return c.From })
	rapid.Check(t, func(rt *rapid.T) {
		charges, changes := charges.Draw(rt, "charges"), changes.Draw(rt, "changes")
		slices.SortFunc(changes, func(a, b change) int { return a.From - b.From })
		var all pgx.Batch
		all.Queue(`TRUNCATE call_attempts, callq.call_open, callq.call_limit_versions`)
		for i, c := range charges {
			if c.Open {
				all.Queue(`INSERT INTO callq.call_open (call_id, attempt, message_no, batch, cost, claimed_at, handed_at, start_by, started_at, epoch, pool, queue, task, key, limits, keys, costs)
					VALUES ($1, 1, 0, 1, $3, $2, $2, $2, $2, '', 'http', 'default', 'http', '', '{api,other}', '{"",""}', ARRAY[$3::bigint, 1000])`, i+1, at(c.Start), c.Cost)
				continue
			}
			var settled *int64
			if c.Settled >= 0 {
				settled = &c.Settled
			}
			charged, err := json.Marshal([]map[string]any{
				{"limit": "other", "cost": 1000, "until": at(c.Until), "key": ""},
				{"limit": "api", "cost": c.really(), "until": at(c.Until), "key": ""},
			})
			if err != nil {
				rt.Fatal(err)
			}
			all.Queue(`INSERT INTO call_attempts (call_id, attempt, cost, settled, claimed_at, started_at, arrived_by, finished_at, outcome, queue, task, key, charged)
				VALUES ($1, 1, $5, $6, $2, $2, $3, $7, 'done', 'default', 'http', '', $4)`, i+1, at(c.Start), at(c.Until), string(charged), c.Cost, settled, at(c.Ended))
		}
		for i, v := range changes {
			all.Queue(`INSERT INTO callq.call_limit_versions (limit_name, version, effective_from, rate, window_size, count_cost, applied_by)
				VALUES ('api', $1, $2, nullif($3, 0), $4, true, 'test')`, i+1, at(v.From), v.Rate, time.Duration(v.Window)*time.Millisecond)
		}
		if err := pool.SendBatch(context.Background(), &all).Close(); err != nil {
			rt.Fatal(err)
		}
		report, err := verify.Run(context.Background(), pool, verify.Options{})
		if err != nil {
			rt.Fatal(err)
		}
		got, want := "", ""
		for _, u := range report.Limits {
			got += fmt.Sprintf("version %d: %d starts, most %d, %d above\n", u.Version, u.Starts, u.Most, u.Above)
		}
		for _, v := range report.Findings {
			if v.Rule == "no window holds more than the rate" {
				got += fmt.Sprintf("over by call %d as%s\n", v.CallID, strings.Split(v.Detail, " as")[1])
			}
		}
		over := ""
		for i, v := range changes {
			if v.Rate == 0 {
				continue
			}
			to := 1 << 30 // until the next that is not its removal: what runs on is held to it
			for _, next := range changes[i+1:] {
				if next.Rate != 0 {
					to = next.From
					break
				}
			}
			starts, most, above := 0, int64(0), int64(0)
			var late []string
			for id, c := range charges {
				if c.Start < v.From || c.Start >= to {
					continue
				}
				starts++
				n := overAt(charges, c.Start, v.Window)
				most = max(most, n)
				above += max(0, c.really()-c.Cost)
				if n > v.Rate {
					late = append(late, fmt.Sprintf("%03d over by call %d as number %d of %d\n", c.Start, id+1, n, v.Rate))
				}
			}
			slices.Sort(late)
			for _, line := range late[:min(len(late), 20)] {
				over += line[4:]
			}
			want += fmt.Sprintf("version %d: %d starts, most %d, %d above\n", i+1, starts, most, above)
		}
		want += over
		if sortLines(got) != sortLines(want) {
			rt.Fatalf("got\n%s\nwant\n%s", got, want)
		}
	})
}

func sortLines(text string) string {
	return strings.Join(slices.Sorted(strings.SplitSeq(text, "\n")), "\n")
}

// A limit that counts otherwise than before counts what came before in its own way, as claims do.
func TestVerifyWindowsOfALimitThatChangesItsForm(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	for _, c := range []struct {
		name   string
		byCost bool
		rate   int
		most   int64
	}{
		{"by calls, once by cost", false, 2, 2},
		{"by cost, once by calls", true, 2, 7},
	} {
		ledgertest.Trial(t, pool, c.name, func(t *testing.T, tx pgx.Tx) {
			ledgertest.Exec(t, tx, fmt.Sprintf(`INSERT INTO call_attempts (call_id, attempt, cost, claimed_at, started_at, arrived_by, finished_at, outcome, queue, task, key, charged)
				SELECT i, 1, 6 - 5 * (i - 1), at, at, at, at, 'done', 'default', 'http', '',
					jsonb_build_array(jsonb_build_object('limit', 'api', 'key', '', 'cost', CASE WHEN %t THEN 1 ELSE 6 END, 'until', at))
				FROM (SELECT i, now() - (3 - i) * interval '1 min' AS at FROM generate_series(1, 2) i) a`, c.byCost))
			ledgertest.Exec(t, tx, fmt.Sprintf(`INSERT INTO callq.call_limit_versions (limit_name, version, effective_from, rate, window_size, count_cost, applied_by)
				VALUES ('api', 1, now() - interval '1 day', 100, '1 h', NOT %[1]t, 'test'), ('api', 2, now() - interval '90 s', %[2]d, '1 h', %[1]t, 'test')`, c.byCost, c.rate))
			report := run(t, tx)
			if most := report.Limits[1].Most; most != c.most {
				t.Errorf("most in a window: %d, want %d; found %v", most, c.most, report.Findings)
			}
		})
	}
}
