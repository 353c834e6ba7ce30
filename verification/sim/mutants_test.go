package sim

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/policy"
	"github.com/jackc/pgx/v5"
)

// mutants are rules turned off, each with the rule of the simulation that must notice.
func mutants() []struct {
	name  string
	rules []string // any of these
	mutant
} {
	const (
		over     = "no limit is exceeded"
		once     = "an attempt sends one request"
		verify   = "verify finds nothing"
		answered = "what is done was answered"
		drains   = "everything drains"
		vanishes = "nothing vanishes"
		bounded  = "failures are counted and bounded"
		backoff  = "a retry waits for its backoff"
		reason   = "a call fails for a reason"
		paused   = "what is paused does not start"
		closed   = "nothing starts outside of its queue's hours"
		stays    = "what is cancelled stays cancelled"
		closes   = "a refusal closes its limits"
		probes   = "one probe goes before the others"
		refusals = "refusals are bounded"
		unique   = "a unique key has one unfinished call"
	)
	return []struct {
		name  string
		rules []string
		mutant
	}{
		{"charged as if it arrived at its start", []string{over}, mutant{close: func(_ *world, _ *attempt, c *ledger.Closing) {
			if c.Arrival != nil {
				c.Arrival = &limit.Arrival{By: new(time.Duration), EndBy: new(time.Duration)}
			}
		}}},
		{"charged nothing when it failed", []string{over}, mutant{close: func(_ *world, _ *attempt, c *ledger.Closing) {
			if c.Failed {
				c.Arrival = nil
			}
		}}},
		{"a lost attempt gives its units back", []string{over, verify}, mutant{
			sql:  onLedgerSQL("NEW.outcome = 'lost'"),
			undo: undoLedgerSQL,
		}},
		{"units that are given out ahead are used at once", []string{over}, mutant{early: true}},
		{"an acknowledgement is an arrival", []string{over}, mutant{queues: true, ackIsLater: true}},
		{"any answer proves what was acknowledged before", []string{over}, mutant{
			queues: true, anyAnswer: true, calm: true, slow: true, timeout: 2 * time.Second,
			often: func(w *world) { w.api.standStill(w.between(w.set.window, 2*w.set.window)) },
		}},
		{"nothing is too late for the gate", []string{over}, mutant{openGate: true}},
		{"what TCP sends again is forgotten", []string{over, verify}, mutant{
			resends: true,
			timeout: 2 * limit.ResendMost, // so long a request is sent again and again
			sql:     openUntilSQL("interval '0'"),
			undo:    openUntilSQL("interval '5 seconds'"),
		}},
		{"m0 is read anew", []string{over}, mutant{newM0: true}},
		{"what has started is taken back", []string{over, once, verify}, mutant{turn: takeBack}},
		{"a repeated message is sent again", []string{once}, mutant{secondSend: true}},
		{"retention frees usage", []string{over, verify}, mutant{retention: func(w *world) {
			_, err := w.lane.workers.Exec(w.ctx, `DELETE FROM callq.call_usage`)
			w.must(err)
		}}},
		{"a deleted call frees its units", []string{over, verify}, mutant{
			turn: deleteRunning,
			sql: `CREATE FUNCTION sim.freed() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
					DELETE FROM callq.call_open WHERE call_id = OLD.id; RETURN OLD; END $$;
				CREATE TRIGGER freed AFTER DELETE ON call_queue FOR EACH ROW EXECUTE FUNCTION sim.freed()`,
			undo: `DROP TRIGGER freed ON call_queue; DROP FUNCTION sim.freed()`,
		}},
		{"a claim is charged to no limit", []string{over}, mutant{
			sql: `CREATE FUNCTION sim.free() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
					NEW.limits := '{}'; NEW.keys := '{}'; NEW.costs := '{}'; RETURN NEW; END $$;
				CREATE TRIGGER free BEFORE INSERT ON callq.call_open FOR EACH ROW EXECUTE FUNCTION sim.free()`,
			undo: `DROP TRIGGER free ON callq.call_open; DROP FUNCTION sim.free()`,
		}},
		{"the numbers of batches do not rise", []string{over}, mutant{
			sql: `CREATE FUNCTION sim.same() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
					NEW.batch := 1; RETURN NEW; END $$;
				CREATE TRIGGER same BEFORE INSERT ON callq.call_open FOR EACH ROW EXECUTE FUNCTION sim.same()`,
			undo: `DROP TRIGGER same ON callq.call_open; DROP FUNCTION sim.same()`,
		}},
		{"no call of a run waits for its turn", []string{over}, mutant{narrow: true, rushes: true}},
		{"each delivery of a run may start it", []string{over, once}, mutant{narrow: true, oneToken: true}},
		{"a run is charged for what there was room for", []string{over}, mutant{
			narrow: true,
			sql: `CREATE FUNCTION sim.unpaid() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
					NEW.costs := array_fill(0::bigint, ARRAY[cardinality(NEW.costs)]); RETURN NEW; END $$;
				CREATE TRIGGER unpaid BEFORE INSERT ON callq.call_open FOR EACH ROW WHEN (NEW.rooms IS NOT NULL) EXECUTE FUNCTION sim.unpaid()`,
			undo: `DROP TRIGGER unpaid ON callq.call_open; DROP FUNCTION sim.unpaid()`,
		}},
		{"a lower rate recalls nothing", []string{over}, mutant{noRecall: true, often: func(w *world) { w.setLimit(w.set.rules.Limits[0]) }}},
		{"a pause recalls nothing", []string{paused}, mutant{noRecall: true}},
		{"what was handed over may start after the hours", []string{closed}, mutant{
			late: true,
			sql: `CREATE FUNCTION sim.longer() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
					NEW.start_by := NEW.claimed_at + interval '30 s'; RETURN NEW; END $$;
				CREATE TRIGGER longer BEFORE INSERT ON callq.call_open FOR EACH ROW EXECUTE FUNCTION sim.longer()`,
			undo: `DROP TRIGGER longer ON callq.call_open; DROP FUNCTION sim.longer()`,
		}},
		{"a failover loses nothing", []string{over}, mutant{
			often: (*world).failOver, failover: policy.Strict,
			sql: `CREATE FUNCTION sim.opened() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
					NEW.missing_until := '2000-01-01'; RETURN NEW; END $$;
				CREATE TRIGGER opened BEFORE UPDATE ON callq.call_limits FOR EACH ROW WHEN (NEW.missing_until IS NOT NULL) EXECUTE FUNCTION sim.opened()`,
			undo: `DROP TRIGGER opened ON callq.call_limits; DROP FUNCTION sim.opened()`,
		}},
		{"workers find whatever they were told", []string{over}, mutant{
			often: (*world).lag, failover: policy.Witnessed,
			sql: `CREATE FUNCTION sim.found() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
					NEW.lacks := NEW.lacks AND false; RETURN NEW; END $$;
				CREATE TRIGGER found BEFORE INSERT OR UPDATE ON callq.call_workers FOR EACH ROW EXECUTE FUNCTION sim.found()`,
			undo: `DROP TRIGGER found ON callq.call_workers; DROP FUNCTION sim.found()`,
		}},
		{"what counts is not counted anew", []string{over}, mutant{
			often: (*world).republish,
			sql: `CREATE FUNCTION sim.whole() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
					NEW.complete_since := OLD.complete_since; RETURN NEW; END $$;
				CREATE TRIGGER whole BEFORE UPDATE ON callq.call_limits FOR EACH ROW
					WHEN (OLD.complete_since IS NOT NULL) EXECUTE FUNCTION sim.whole()`,
			undo: `DROP TRIGGER whole ON callq.call_limits; DROP FUNCTION sim.whole()`,
		}},
		{"each call costs one", []string{over}, mutant{
			sql: `CREATE FUNCTION sim.one() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
					NEW.costs := array_fill(1::bigint, ARRAY[cardinality(NEW.costs)]); RETURN NEW; END $$;
				CREATE TRIGGER one BEFORE INSERT ON callq.call_open FOR EACH ROW WHEN (NEW.limits <> '{}') EXECUTE FUNCTION sim.one()`,
			undo: `DROP TRIGGER one ON callq.call_open; DROP FUNCTION sim.one()`,
		}},
		{"what was settled is charged nothing", []string{over}, mutant{close: func(_ *world, _ *attempt, c *ledger.Closing) {
			if c.Settled != nil {
				c.Settled = new(int64)
			}
		}}},
		{"what runs at once is not counted", []string{over}, mutant{
			sql: `CREATE FUNCTION sim.alone() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
					NEW.costs[array_position(NEW.limits, 'atonce')] := 0; RETURN NEW; END $$;
				CREATE TRIGGER alone BEFORE INSERT ON callq.call_open FOR EACH ROW WHEN ('atonce' = ANY(NEW.limits)) EXECUTE FUNCTION sim.alone()`,
			undo: `DROP TRIGGER alone ON callq.call_open; DROP FUNCTION sim.alone()`,
		}},
		{"a cancelled call is tried again", []string{stays}, mutant{
			sql: `CREATE FUNCTION sim.revived() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
					PERFORM set_config('callq.repair', 'on', true); NEW.status := 'error'; RETURN NEW; END $$;
				CREATE TRIGGER revived BEFORE UPDATE ON call_queue FOR EACH ROW WHEN (OLD.status = 'cancelled') EXECUTE FUNCTION sim.revived()`,
			undo: `DROP TRIGGER revived ON call_queue; DROP FUNCTION sim.revived()`,
		}},
		{"a unique key is forgotten at a failure", []string{unique}, mutant{
			sql: `CREATE FUNCTION sim.forgotten() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
					NEW.unique_key := NULL; RETURN NEW; END $$;
				CREATE TRIGGER forgotten BEFORE UPDATE ON call_queue FOR EACH ROW WHEN (NEW.status = 'error') EXECUTE FUNCTION sim.forgotten()`,
			undo: `DROP TRIGGER forgotten ON call_queue; DROP FUNCTION sim.forgotten()`,
		}},
		{"a snooze is a failure", []string{bounded}, mutant{close: func(_ *world, _ *attempt, c *ledger.Closing) {
			c.Failed = c.Failed || c.Outcome == callqueue.OutcomeSnoozed
		}}},
		{"a refusal is a failure", []string{bounded}, mutant{close: func(_ *world, _ *attempt, c *ledger.Closing) {
			c.Failed = c.Failed || c.Outcome == callqueue.OutcomeRefused
		}}},
		{"a refusal closes nothing", []string{closes}, mutant{
			sql: `CREATE FUNCTION sim.ajar() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
				CREATE TRIGGER ajar BEFORE INSERT ON callq.call_pauses FOR EACH ROW WHEN (NEW.spell IS NOT NULL) EXECUTE FUNCTION sim.ajar()`,
			undo: `DROP TRIGGER ajar ON callq.call_pauses; DROP FUNCTION sim.ajar()`,
		}},
		{"a refusal is forgotten when its time is over", []string{probes}, mutant{turn: func(w *world) {
			_, err := w.lane.workers.Exec(w.ctx, `DELETE FROM callq.call_pauses WHERE spell IS NOT NULL AND until <= clock_timestamp()`)
			w.must(err)
		}}},
		{"a refusal is retried for ever", []string{refusals}, mutant{close: func(_ *world, a *attempt, c *ledger.Closing) {
			if c.Outcome == callqueue.OutcomePermanent && a.how == laterEnding {
				c.Outcome, c.Status, c.Failed = callqueue.OutcomeRefused, callqueue.StatusNew, false
			}
		}}},
		{"a step of the clock goes unseen", []string{over}, mutant{clockRuns: 1000, often: (*world).stepClock}},
		{"what the clock gained is not written", []string{over}, mutant{
			often: (*world).stepClock,
			sql: `CREATE FUNCTION sim.unwritten() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
				CREATE TRIGGER unwritten BEFORE INSERT ON callq.call_clock_gains FOR EACH ROW EXECUTE FUNCTION sim.unwritten()`,
			undo: `DROP TRIGGER unwritten ON callq.call_clock_gains; DROP FUNCTION sim.unwritten()`,
		}},
		{"no answer counts as done", []string{answered}, mutant{close: func(_ *world, a *attempt, c *ledger.Closing) {
			if a.heard == nil && a.written {
				c.Outcome, c.Status, c.Failed, c.Delay = callqueue.OutcomeDone, callqueue.StatusDone, false, nil
			}
		}}},
		{"a failure is retried for ever", []string{bounded}, mutant{close: func(_ *world, _ *attempt, c *ledger.Closing) {
			if c.Failed && c.Status == callqueue.StatusFailed && c.Outcome == callqueue.OutcomeError {
				c.Status = callqueue.StatusError
			}
		}}},
		{"a failure is retried at once", []string{backoff}, mutant{close: func(_ *world, _ *attempt, c *ledger.Closing) {
			if c.Delay != nil && c.Failed {
				c.Delay = new(time.Duration)
			}
		}}},
		{"the first failure is the last", []string{reason}, mutant{close: func(_ *world, _ *attempt, c *ledger.Closing) {
			if c.Failed {
				c.Status, c.Delay = callqueue.StatusFailed, nil
			}
		}}},
		{"an unsent attempt leaves its call behind", []string{verify, drains}, mutant{
			sql: `CREATE FUNCTION sim.left() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
					IF OLD.status = 'dispatched' AND NEW.status = 'new' THEN RETURN NULL; END IF; RETURN NEW; END $$;
				CREATE TRIGGER left_behind BEFORE UPDATE ON call_queue FOR EACH ROW EXECUTE FUNCTION sim.left()`,
			undo: `DROP TRIGGER left_behind ON call_queue; DROP FUNCTION sim.left()`,
		}},
		{"retention takes what waits", []string{vanishes}, mutant{retention: func(w *world) {
			_, err := w.lane.workers.Exec(w.ctx, `DELETE FROM call_queue WHERE status IN ('new', 'error')`)
			w.must(err)
		}}},
	}
}

// openUntilSQL counts open attempts for another while after their requests were written.
func openUntilSQL(resends string) string {
	return `CREATE OR REPLACE FUNCTION callq.occupied_until(task text, epoch text, started_at timestamptz, send_within interval, acked_at timestamptz,
			overtaken_at timestamptz, limit_anchor text, limit_epoch text, slack interval, proof text)
		RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE AS $$
			SELECT CASE
				WHEN started_at IS NULL OR send_within IS NULL OR epoch <> limit_epoch
					OR coalesce(limit_anchor, CASE task WHEN 'http' THEN 'start' ELSE 'finish' END) <> 'start' THEN 'infinity'
				WHEN proof = 'later' AND overtaken_at IS NULL THEN 'infinity'
				WHEN proof = 'later' THEN greatest(overtaken_at, started_at + send_within + slack)
				WHEN acked_at IS NULL THEN started_at + send_within + ` + resends + ` + slack
				ELSE greatest(acked_at, started_at + send_within + slack) END $$`
}

// onLedgerSQL takes the usage away of ledger rows that fit a condition.
func onLedgerSQL(when string) string {
	return `CREATE FUNCTION sim.refund() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			DELETE FROM callq.call_usage u USING jsonb_to_recordset(NEW.charged) AS r ("limit" text, key text, until timestamptz), callq.call_limits l
			WHERE u.limit_name = r."limit" AND u.key = r.key AND l.name = u.limit_name
			  AND u.bucket >= r.until AND u.bucket <= r.until + l.bucket_width;
			RETURN NEW; END $$;
		CREATE TRIGGER refund AFTER INSERT ON call_attempts FOR EACH ROW WHEN (` + when + `) EXECUTE FUNCTION sim.refund()`
}

const undoLedgerSQL = `DROP TRIGGER refund ON call_attempts; DROP FUNCTION sim.refund()`

// takeBack closes what runs as if it had not been sent.
func takeBack(w *world) {
	_, err := w.lane.workers.Exec(w.ctx, `
		SET LOCAL callq.repair = on;
		WITH gone AS (DELETE FROM callq.call_open WHERE started_at < clock_timestamp() - interval '50 ms' RETURNING call_id, attempt)
		UPDATE call_queue q SET status = 'new', attempts = q.attempts - 1 FROM gone
		WHERE q.id = gone.call_id AND q.status = 'dispatched'`)
	w.must(err)
}

// deleteRunning deletes a call that runs, now and then.
func deleteRunning(w *world) {
	rows, err := w.lane.workers.Query(w.ctx, `
		DELETE FROM call_queue WHERE id = (SELECT min(call_id) FROM callq.call_open WHERE started_at IS NOT NULL) AND $1 RETURNING id`, w.chance(0.2))
	w.must(err)
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	w.must(err)
	for _, id := range ids {
		w.calls[id].gone = true
	}
}

const mutantSeeds = 120

// noticedBy has the seed that noticed a mutant last, which is tried first: to look for it takes ten minutes. After a change of the
// simulation another may; -v says which.
var noticedBy = map[string]uint64{
	"a cancelled call is tried again":                 10,
	"a claim is charged to no limit":                  2,
	"a failover loses nothing":                        33,
	"a failure is retried at once":                    5,
	"a lost attempt gives its units back":             8,
	"a lower rate recalls nothing":                    19,
	"a pause recalls nothing":                         19,
	"a refusal closes nothing":                        2,
	"a refusal is a failure":                          2,
	"a refusal is forgotten when its time is over":    4,
	"a refusal is retried for ever":                   3,
	"a repeated message is sent again":                7,
	"a run is charged for what there was room for":    2,
	"a snooze is a failure":                           5,
	"a step of the clock goes unseen":                 21,
	"a unique key is forgotten at a failure":          5,
	"an acknowledgement is an arrival":                10,
	"an unsent attempt leaves its call behind":        2,
	"charged as if it arrived at its start":           2,
	"charged nothing when it failed":                  2,
	"each call costs one":                             3,
	"each delivery of a run may start it":             5,
	"m0 is read anew":                                 67,
	"no answer counts as done":                        4,
	"nothing is too late for the gate":                2,
	"retention frees usage":                           6,
	"retention takes what waits":                      4,
	"the first failure is the last":                   2,
	"the numbers of batches do not rise":              2,
	"units that are given out ahead are used at once": 3,
	"what TCP sends again is forgotten":               2,
	"what counts is not counted anew":                 13,
	"what has started is taken back":                  2,
	"what runs at once is not counted":                5,
	"what the clock gained is not written":            8,
	"what was handed over may start after the hours":  7,
	"what was settled is charged nothing":             3,
	"workers find whatever they were told":            7,
}

// TestMutants: the simulation notices each rule that is turned off, within some seeds.
//
//callq:guarantee 1 2 3 4 5 6 7 11
func TestMutants(t *testing.T) {
	if testing.Short() || !*mutantsFlag {
		t.Skip("takes minutes: -mutants runs it, which make sim gives, and .ci/run runs that")
	}
	lanes := make(chan *lane, 2)
	for range cap(lanes) {
		lanes <- newLane(t)
	}
	t.Run("each", func(t *testing.T) {
		for _, m := range mutants() {
			t.Run(m.name, func(t *testing.T) {
				t.Parallel()
				m.rough = true
				l := <-lanes
				defer func() { lanes <- l }()
				for try := range uint64(mutantSeeds + 1) {
					seed := try
					if try == 0 {
						if seed = noticedBy[m.name]; seed == 0 {
							continue
						}
					}
					_, err := simulate(t.Context(), l, seed, m.mutant)
					f, ok := errors.AsType[*failure](err)
					if err != nil && !ok {
						t.Fatal(err)
					}
					if ok && slices.Contains(m.rules, f.rule) {
						t.Logf("seed %d: %s: %s", seed, f.rule, f.text)
						return
					}
				}
				t.Errorf("not noticed within %d seeds", mutantSeeds)
			})
		}
	})
}
