package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/ledger/verify"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/policy"
	"github.com/callq/callq/tasks"
)

// forgeries are each a change of an honest history that makes it say what was not so.
var forgeries = []struct{ name, sql string }{
	// What an attempt was charged.
	{"all charges emptied", `UPDATE call_attempts SET charged = '[]' WHERE charged <> '[]'`},
	{"all charges emptied, and never arrived", `UPDATE call_attempts SET charged = '[]', arrived_by = NULL WHERE charged <> '[]'`},
	{"one attempt's charges emptied", `UPDATE call_attempts SET charged = '[]' WHERE call_id = 1`},
	{"one attempt that may have been sent is charged nothing", `UPDATE call_attempts SET charged = '[]', arrived_by = NULL WHERE call_id = 1`},
	{"one lost attempt is charged nothing", `UPDATE call_attempts SET charged = '[]', arrived_by = NULL WHERE outcome = 'lost'`},
	{"a handler's attempt is charged nothing", `UPDATE call_attempts SET charged = '[]', arrived_by = NULL WHERE task = 'mine'`},
	{"a failed request is charged nothing", `UPDATE call_attempts SET charged = '[]', arrived_by = NULL WHERE outcome = 'permanent'`},
	{"one limit's charge removed", `UPDATE call_attempts SET charged = charged - 0 WHERE jsonb_array_length(charged) = 2`},
	{"the other limit's charge removed", `UPDATE call_attempts SET charged = charged - 1 WHERE jsonb_array_length(charged) = 2`},
	{"charged to another limit", `UPDATE call_attempts SET charged = jsonb_set(charged, '{0,limit}', '"day"') WHERE call_id = 1`},
	{"charged to a limit that does not exist", `UPDATE call_attempts SET charged = jsonb_set(charged, '{0,limit}', '"none"') WHERE call_id = 1`},
	{"charged twice", `UPDATE call_attempts SET charged = charged || charged WHERE call_id = 1`},
	{"charged to a limit too many", `UPDATE call_attempts SET charged = charged || jsonb_set(charged->0, '{limit}', '"day"') WHERE call_id = 1`},
	{"charged to another key", `UPDATE call_attempts SET charged = jsonb_path_query_array(charged, '$[*] ? (@.limit == "api")')
		|| jsonb_set(jsonb_path_query_first(charged, '$[*] ? (@.limit == "each")'), '{key}', '"z"') WHERE call_id = (SELECT min(call_id) FROM call_attempts WHERE queue = 'heavy')`},
	{"charged a lower cost", `UPDATE call_attempts SET charged = jsonb_path_query_array(charged, '$[*] ? (@.limit == "api")')
		|| jsonb_set(jsonb_path_query_first(charged, '$[*] ? (@.limit == "each")'), '{cost}', '1') WHERE call_id = (SELECT min(call_id) FROM call_attempts WHERE queue = 'heavy')`},
	{"charged no unit", `UPDATE call_attempts SET charged = jsonb_set(charged, '{0,cost}', '0') WHERE call_id = 1`},
	{"until before the start", `UPDATE call_attempts SET charged = jsonb_set(charged, '{0,until}', to_jsonb(started_at - interval '1 min')) WHERE call_id = 1`},
	{"until and arrived_by before the start", `UPDATE call_attempts SET arrived_by = started_at - interval '1 min',
		charged = jsonb_set(charged, '{0,until}', to_jsonb(started_at - interval '1 min')) WHERE call_id = 1`},
	{"until later than the arrival", `UPDATE call_attempts SET charged = jsonb_set(charged, '{0,until}', to_jsonb(arrived_by + interval '1 min')) WHERE call_id = 1`},
	{"one of two untils earlier", `UPDATE call_attempts SET charged = jsonb_set(charged, '{0,until}', to_jsonb(started_at))
		WHERE call_id = (SELECT max(call_id) FROM call_attempts WHERE outcome = 'lost')`},
	{"a lost request that arrived at once", `UPDATE call_attempts SET arrived_by = started_at, charged = jsonb_set(charged, '{0,until}', to_jsonb(started_at))
		WHERE call_id = (SELECT min(call_id) FROM call_attempts WHERE outcome = 'lost')`},
	{"a lost request whose arrival nothing proves", `UPDATE call_attempts SET proof = NULL WHERE outcome = 'lost'`},
	{"no until", `UPDATE call_attempts SET charged = charged #- '{0,until}' WHERE call_id = 1`},
	{"arrived_by NULL though charged", `UPDATE call_attempts SET arrived_by = NULL WHERE call_id = 1`},
	{"arrived_by earlier", `UPDATE call_attempts SET arrived_by = arrived_by - interval '1 h' WHERE call_id = 1`},
	{"an unsent attempt that is charged", `UPDATE call_attempts SET arrived_by = finished_at, charged = (SELECT charged FROM call_attempts WHERE call_id = 1)
		WHERE outcome = 'not_sent'`},
	// What else is said of an attempt.
	{"requests 0 of a done http call", `UPDATE call_attempts SET requests = 0 WHERE call_id = 1`},
	{"requests unknown of a done http call", `UPDATE call_attempts SET requests = NULL WHERE call_id = 1`},
	{"requests 0 of a done http call, and not charged", `UPDATE call_attempts SET requests = 0, arrived_by = NULL, charged = '[]' WHERE call_id = 1`},
	{"two requests", `UPDATE call_attempts SET requests = 2 WHERE call_id = 1`},
	{"less than no request", `UPDATE call_attempts SET requests = -1 WHERE call_id = 1`},
	{"a done attempt that never started", `UPDATE call_attempts SET started_at = NULL WHERE call_id = 1`},
	{"started before its claim", `UPDATE call_attempts SET started_at = claimed_at - interval '2 h' WHERE call_id = 1`},
	{"claimed earlier", `UPDATE call_attempts SET claimed_at = claimed_at - interval '2 h' WHERE call_id = 1`},
	{"started after it arrived", `UPDATE call_attempts SET started_at = arrived_by + interval '2 h' WHERE call_id = 1`},
	{"ended earlier", `UPDATE call_attempts SET finished_at = finished_at - interval '2 h' WHERE call_id = 1`},
	{"ended later", `UPDATE call_attempts SET finished_at = finished_at + interval '2 h' WHERE call_id = 1`},
	{"another outcome", `UPDATE call_attempts SET outcome = 'error' WHERE call_id = 1`},
	{"an outcome that is none", `UPDATE call_attempts SET outcome = 'fine' WHERE call_id = 1`},
	{"a request said not to be sent", `UPDATE call_attempts SET outcome = 'not_sent' WHERE outcome = 'snoozed'`},
	{"of another queue", `UPDATE call_attempts SET queue = 'timed' WHERE call_id = 1`},
	{"of another key", `UPDATE call_attempts SET key = 'z' WHERE queue = 'heavy'`},
	{"a lower cost", `UPDATE call_attempts SET cost = 1 WHERE queue = 'heavy' AND settled IS NULL`},
	{"settled lower", `UPDATE call_attempts SET settled = 1 WHERE settled IS NOT NULL`},
	{"settled lower than nothing", `UPDATE call_attempts SET settled = -5 WHERE call_id = 1`},
	{"settled forgotten", `UPDATE call_attempts SET settled = NULL WHERE settled IS NOT NULL`},
	// Attempts that are gone, or that never were.
	{"an attempt in the middle gone", `DELETE FROM call_attempts WHERE attempt = 1 AND call_id IN (SELECT call_id FROM call_attempts WHERE attempt = 2)`},
	{"the last attempt gone", `DELETE FROM call_attempts a WHERE call_id = (SELECT min(id) FROM call_queue WHERE status = 'error')`},
	{"the last attempt and its counter gone", `WITH gone AS (DELETE FROM call_attempts a USING call_queue q WHERE q.id = a.call_id AND a.attempt = q.attempts AND outcome IN ('snoozed', 'lost') RETURNING call_id, outcome)
		UPDATE call_queue q SET attempts = attempts - 1, failed_count = failed_count - (outcome = 'lost')::int FROM gone WHERE q.id = gone.call_id`},
	{"all attempts and counters of a waiting call gone", `WITH gone AS (DELETE FROM call_attempts WHERE outcome = 'snoozed' RETURNING call_id)
		UPDATE call_queue SET attempts = 0 WHERE id IN (SELECT call_id FROM gone)`},
	{"a done call that has no attempts", `WITH gone AS (DELETE FROM call_attempts WHERE call_id = 1) UPDATE call_queue SET attempts = 0 WHERE id = 1`},
	{"a done call made new", `WITH gone AS (DELETE FROM call_attempts WHERE call_id = 1)
		UPDATE call_queue SET attempts = 0, status = 'new', finished_at = NULL WHERE id = 1`},
	{"an attempt that never was", `INSERT INTO call_attempts (call_id, attempt, requests, cost, settled, claimed_at, started_at, arrived_by, finished_at, outcome,
		queue, task, key, worker, error, charged, result)
		SELECT call_id, 2, requests, cost, settled, claimed_at, started_at, arrived_by, finished_at, outcome,
		queue, task, key, worker, error, charged, result FROM call_attempts WHERE call_id = 1`},
	// What is open.
	{"an open attempt of no limits", `UPDATE callq.call_open SET limits = '{}', keys = '{}', costs = '{}' WHERE started_at IS NOT NULL`},
	{"an open attempt of one limit less", `UPDATE callq.call_open SET limits = limits[2:], keys = keys[2:], costs = costs[2:] WHERE cardinality(limits) > 1`},
	{"an open attempt that takes nothing", `UPDATE callq.call_open SET costs = array_fill(0::bigint, ARRAY[cardinality(costs)]) WHERE started_at IS NOT NULL`},
	{"an open attempt of another key", `UPDATE callq.call_open SET keys = array_fill('z'::text, ARRAY[cardinality(keys)]) WHERE started_at IS NOT NULL`},
	{"an open attempt that did not start", `UPDATE callq.call_open SET started_at = NULL WHERE started_at IS NOT NULL`},
	{"an open attempt that started before its claim", `UPDATE callq.call_open SET started_at = claimed_at - interval '1 h' WHERE started_at IS NOT NULL`},
	{"an open attempt that was claimed and started earlier", `UPDATE callq.call_open SET claimed_at = claimed_at - interval '1 h', started_at = started_at - interval '1 h' WHERE started_at IS NOT NULL`},
	{"an open attempt that is quicker", `UPDATE callq.call_open SET send_within = '0' WHERE started_at IS NOT NULL`},
	{"an open attempt acknowledged before it started", `UPDATE callq.call_open SET acked_at = started_at - interval '1 h' WHERE started_at IS NOT NULL`},
	{"an open attempt overtaken before it started", `UPDATE callq.call_open SET overtaken_at = started_at - interval '1 h' WHERE started_at IS NOT NULL`},
	{"an open attempt gone", `DELETE FROM callq.call_open WHERE started_at IS NOT NULL`},
	{"an open attempt and its counter gone", `WITH gone AS (DELETE FROM callq.call_open WHERE started_at IS NOT NULL RETURNING call_id)
		UPDATE call_queue SET attempts = attempts - 1, status = 'new' WHERE id IN (SELECT call_id FROM gone)`},
	// What a call says.
	{"a status that is none", `UPDATE call_queue SET status = 'fine' WHERE id = 1`},
	{"a done call that failed", `UPDATE call_queue SET status = 'failed' WHERE id = 1`},
	{"a snoozed call that failed", `UPDATE call_queue SET status = 'failed' WHERE id IN (SELECT call_id FROM call_attempts WHERE outcome = 'snoozed')`},
	{"a failed call that is new", `UPDATE call_queue SET status = 'new' WHERE id IN (SELECT call_id FROM call_attempts WHERE outcome = 'permanent')`},
	{"a failed call that is to be retried", `UPDATE call_queue SET status = 'error' WHERE id IN (SELECT call_id FROM call_attempts WHERE outcome = 'permanent')`},
	{"a call to be retried that is new", `UPDATE call_queue SET status = 'new' WHERE status = 'error'`},
	{"a call to be retried without a failure", `UPDATE call_queue SET status = 'error' WHERE id IN (SELECT call_id FROM call_attempts WHERE outcome = 'snoozed')`},
	{"a waiting call that is to be retried", `UPDATE call_queue SET status = 'error' WHERE attempts = 0 AND status = 'new'`},
	{"a waiting call that is done", `UPDATE call_queue SET status = 'done', finished_at = now() WHERE attempts = 0 AND status = 'new'`},
	{"a waiting call that runs", `UPDATE call_queue SET status = 'dispatched' WHERE attempts = 0 AND status = 'new'`},
	{"failed_count lower", `UPDATE call_queue SET failed_count = 0 WHERE failed_count > 0`},
	{"failed_count higher", `UPDATE call_queue SET failed_count = failed_count + 1 WHERE id = 1`},
	{"dispatched at another time", `UPDATE call_queue SET dispatched_at = dispatched_at - interval '1 h' WHERE id = 1`},
	{"done at another time", `UPDATE call_queue SET finished_at = finished_at - interval '1 h' WHERE id = 1`},
	{"done at no time", `UPDATE call_queue SET finished_at = NULL WHERE id = 1`},
	{"retried after attempts that it did not have", `UPDATE call_queue SET retried_after = 9 WHERE id = 1`},
	// What was in force.
	{"a version deleted, the last", `DELETE FROM callq.call_limit_versions c WHERE limit_name = 'api' AND version = (SELECT max(version) FROM callq.call_limit_versions WHERE limit_name = 'api')`},
	{"a version deleted, between", `DELETE FROM callq.call_limit_versions WHERE limit_name = 'api' AND version = 2`},
	{"a version deleted, the first", `DELETE FROM callq.call_limit_versions WHERE limit_name = 'api' AND version = 1`},
	{"all versions of a limit deleted", `DELETE FROM callq.call_limit_versions WHERE limit_name = 'api'`},
	{"a version raised afterwards, between", `UPDATE callq.call_limit_versions SET rate = rate * 2 WHERE limit_name = 'api' AND version = 2`},
	{"a version raised afterwards, the first", `UPDATE callq.call_limit_versions SET rate = rate * 2 WHERE limit_name = 'api' AND version = 1`},
	{"a version raised afterwards, the last", `UPDATE callq.call_limit_versions c SET rate = rate * 2 WHERE limit_name = 'api' AND version = (SELECT max(version) FROM callq.call_limit_versions WHERE limit_name = 'api')`},
	{"a version's window shortened afterwards", `UPDATE callq.call_limit_versions SET window_size = '1 s' WHERE limit_name = 'api' AND version = 2`},
	{"a version's slack lowered afterwards", `UPDATE callq.call_limit_versions SET slack = '0' WHERE limit_name = 'api' AND version = 2`},
	{"a version's burst raised afterwards", `UPDATE callq.call_limit_versions SET shape = jsonb_set(shape, '{burst}', '100000') WHERE limit_name = 'bucket' AND version = 1`},
	{"a version in force later", `UPDATE callq.call_limit_versions SET effective_from = effective_from + interval '5 min' WHERE limit_name = 'api' AND version = 2`},
	{"a version in force earlier", `UPDATE callq.call_limit_versions SET effective_from = effective_from - interval '1 h' WHERE limit_name = 'api' AND version = 2`},
	{"a version of fewer queues", `UPDATE callq.call_limit_versions SET queues = array_remove(queues, 'heavy') WHERE limit_name = 'api' AND version = 2`},
	{"a version that never was", `INSERT INTO callq.call_limit_versions (limit_name, version, effective_from, rate, window_size, slack, send_within, queues, applied_by)
		SELECT limit_name, 1 + version, clock_timestamp(), 10 * rate, window_size, slack, send_within, queues, applied_by FROM callq.call_limit_versions WHERE limit_name = 'day' ORDER BY version DESC LIMIT 1`},
	{"a limit removed, and back", `UPDATE callq.call_limit_versions SET rate = NULL WHERE limit_name = 'api' AND version = 2`},
	{"a limit unlike its last version, its rate", `UPDATE callq.call_limits SET rate = rate * 2 WHERE name = 'api'`},
	{"a limit unlike its last version, its window", `UPDATE callq.call_limits SET window_size = '1 min' WHERE name = 'api'`},
	{"a limit unlike its last version, its slack", `UPDATE callq.call_limits SET slack = '0' WHERE name = 'api'`},
	{"a limit unlike its last version, its queues", `UPDATE callq.call_limits SET queues = array_remove(queues, 'heavy') WHERE name = 'api'`},
	{"a limit unlike its last version, its overrides", `UPDATE callq.call_limits SET overrides = '{"a": 1000}' WHERE name = 'each'`},
	{"a limit unlike its last version, its number", `UPDATE callq.call_limits SET version = version + 1 WHERE name = 'api'`},
	{"a limit gone", `DELETE FROM callq.call_limits WHERE name = 'api'`},
	{"a queue without a limit that counts it", `UPDATE callq.call_queues SET limits = array_remove(limits, 'api') WHERE name = 'heavy'`},
	// What has been used.
	{"usage lower", `UPDATE callq.call_usage SET used = used - 1 WHERE limit_name = 'api' AND used > 0`},
	{"usage gone", `DELETE FROM callq.call_usage WHERE limit_name = 'api'`},
	{"usage of another key", `UPDATE callq.call_usage SET key = 'z' WHERE limit_name = 'each' AND key = 'a'`},
	// What Postgres's clock gained.
	{"a gain of the clock that no time is", `INSERT INTO callq.call_clock_gains (at, by) VALUES ('infinity', '1 h')`},
	{"a gain of the clock that is none", `INSERT INTO callq.call_clock_gains (at, by) VALUES (clock_timestamp(), '0')`},
}

// Every forgery is found in a history that the real program made, and nothing in the history as it is.
//
//callq:guarantee 6
func TestVerifyFindsEveryForgery(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.honestHistory()
	s.verify()
	if t.Failed() {
		t.FailNow()
	}
	missed := 0
	for _, f := range forgeries {
		report, err := s.forged(f.sql)
		switch {
		case err != nil:
			t.Errorf("%s: %v", f.name, err)
		case len(report.Findings) == 0:
			missed++
			t.Errorf("missed: %s", f.name)
		default:
			t.Logf("%s: %+v", f.name, report.Findings[0])
		}
	}
	s.verify()
	if missed > 0 {
		t.Errorf("verify missed %d of %d forgeries", missed, len(forgeries))
	}
}

// forged is what verify says of the history with a forgery, which is rolled back then.
func (s *system) forged(forgery string) (*verify.Report, error) {
	tx, err := s.owner.Begin(s.t.Context())
	if err != nil {
		return nil, err
	}
	defer tx.Rollback(context.Background())
	if tag, err := tx.Exec(s.t.Context(), forgery); err != nil || tag.RowsAffected() == 0 {
		return nil, fmt.Errorf("it changed %d rows: %w", tag.RowsAffected(), err)
	}
	return verify.RunTx(s.t.Context(), tx, verify.Options{})
}

// honestHistory is calls that ended in every way there is, under limits of several kinds, which were changed in
// between; some are open yet.
func (s *system) honestHistory() {
	s.t.Helper()
	api := sliding("api", 100, time.Hour)
	each := policy.Limit{Name: "each", Rate: limit.Rate{Units: 50, Window: time.Hour}, PerKey: true, CountCost: true}
	day := shaped(s.t, "day", "1000/1d", limit.FixedWindow, 0, "")
	bucket := shaped(s.t, "bucket", "100/s", limit.TokenBucket, 100, "")
	r := policy.Policy{
		Limits: []policy.Limit{api, each, day, bucket},
		Queues: []policy.Queue{queue("default", "api"), queue("heavy", "api", "each"), queue("timed", "day", "bucket"), queue("free")},
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/bad" {
			w.WriteHeader(http.StatusUnprocessableEntity)
		}
	}))
	s.t.Cleanup(server.Close)
	phase := func(until string) {
		s.t.Helper()
		ctx, stop := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		d, w := s.dispatcher(r), s.worker()
		wg.Go(func() {
			if err := d.Run(ctx); err != nil {
				s.t.Error(err)
			}
		})
		wg.Go(func() {
			if err := w.Run(ctx); err != nil {
				s.t.Error(err)
			}
		})
		s.eventually(until)
		stop()
		wg.Wait()
	}
	s.exec(`INSERT INTO call_queue (call_data) SELECT jsonb_build_object('url', $1::text) FROM generate_series(1, 5)`, server.URL)
	s.exec(`INSERT INTO call_queue (call_data) VALUES (jsonb_build_object('url', $1::text))`, server.URL+"/bad")
	s.exec(`INSERT INTO call_queue (queue, task, key, cost) SELECT 'heavy', 'mine', chr(96 + i), 3 FROM generate_series(1, 3) i`)
	s.exec(`INSERT INTO call_queue (queue, task, key, cost) VALUES ('heavy', 'settles', 'a', 4), ('heavy', 'fails once', 'b', 2)`)
	s.exec(`INSERT INTO call_queue (queue, task) VALUES ('timed', 'mine'), ('timed', 'unsent once'), ('free', 'mine'), ('default', 'later')`)
	phase(`SELECT count(*) = 14 FROM call_queue WHERE status IN ('done', 'failed')`)
	s.set(60, time.Hour)
	s.exec(`INSERT INTO call_queue (call_data) SELECT jsonb_build_object('url', $1::text) FROM generate_series(1, 3)`, server.URL)
	s.exec(`INSERT INTO call_queue (queue, task) VALUES ('timed', 'mine'), ('heavy', 'mine')`)
	phase(`SELECT count(*) = 19 FROM call_queue WHERE status IN ('done', 'failed')`)
	if _, err := policy.Reset(context.Background(), s.pool, "api", ledger.By("test")); err != nil {
		s.t.Fatal(err)
	}
	r.Queues[2].Limits = []string{"bucket", "day", "api"}
	s.exec(`INSERT INTO call_queue (queue, task) VALUES ('timed', 'mine')`)
	phase(`SELECT count(*) = 20 FROM call_queue WHERE status IN ('done', 'failed')`)
	r.Queues[2].Limits = []string{"bucket", "day"}
	for i := range r.Queues { // however slow this machine is, what is lost is not tried again by the tick that finds it
		r.Queues[i].BackoffMin, r.Queues[i].BackoffMax = time.Minute, time.Minute
	}
	s.exec(`INSERT INTO call_queue (queue, task, cost) VALUES ('default', 'http', 1), ('heavy', 'http', 5)`)
	s.alive(100)
	s.once(r)
	s.start(time.Minute)
	s.exec(`UPDATE callq.call_open SET deadline = started_at + interval '1 ms'`)
	s.exec(`UPDATE callq.call_queues SET on_lost = 'fail' WHERE name = 'heavy'`)
	s.once(r)
	s.exec(`UPDATE call_queue SET run_at = 'infinity' WHERE status = 'error'`)
	s.exec(`INSERT INTO call_queue (expires_at) VALUES (clock_timestamp() + interval '1 ms')`)
	s.exec(`INSERT INTO call_queue (queue, key, cost) VALUES ('heavy', 'a', 3)`)
	s.eventually(`SELECT expires_at < clock_timestamp() FROM call_queue WHERE expires_at IS NOT NULL`)
	s.once(r)
	s.start(time.Minute)
	s.exec(`INSERT INTO call_queue (queue, key) VALUES ('heavy', 'c')`)
	s.once(r)
	s.exec(`INSERT INTO call_queue (run_at) VALUES (clock_timestamp() + interval '1 day')`)
	s.want(`SELECT array_agg(DISTINCT outcome ORDER BY outcome) = '{done,error,lost,not_sent,permanent,snoozed}' FROM call_attempts`)
	s.want(`SELECT count(*) FILTER (WHERE started_at IS NULL) > 0 AND count(started_at) > 0 FROM callq.call_open`)
}

// worker runs the tasks of honestHistory.
func (s *system) worker() *tasks.Worker {
	s.t.Helper()
	w := s.tasks(10, &tasks.HTTPConfig{AllowPrivate: true})
	w.Handle("mine", func(context.Context, *tasks.Call) error { return nil })
	w.Handle("settles", func(_ context.Context, call *tasks.Call) error {
		return call.Settle(2)
	})
	w.Handle("fails once", func(_ context.Context, call *tasks.Call) error {
		if call.Attempt == 1 {
			return errors.New("not yet")
		}
		return nil
	})
	w.Handle("unsent once", func(_ context.Context, call *tasks.Call) error {
		if call.Attempt == 1 {
			return tasks.NotSent(errors.New("not yet"))
		}
		return nil
	})
	w.Handle("later", func(context.Context, *tasks.Call) error { return tasks.Snooze(24 * time.Hour) })
	return w
}
