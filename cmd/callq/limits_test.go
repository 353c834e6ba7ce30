package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/callq/callq/internal/admin"
	"github.com/callq/callq/internal/hours"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/policy"
)

// published has a world whose database knows two limits and a queue.
func published(t *testing.T) world {
	t.Helper()
	w := newWorld(t)
	pool, err := pgxpool.New(t.Context(), w.postgres)
	must(t, err)
	t.Cleanup(pool.Close)
	rate, err := limit.ParseRate("100/1h")
	must(t, err)
	_, err = policy.Apply(t.Context(), pool, policy.Policy{
		Limits: []policy.Limit{{Name: "stripe", Rate: rate, PerKey: true, CountCost: true}, {Name: "sockets", Rate: limit.Rate{Units: 5}}},
		Queues: []policy.Queue{{
			Name: "payments", Limits: []string{"stripe", "sockets"}, MaxAttempts: 3, BackoffMin: 1, BackoffMax: 1, Timeout: 1, OnLost: "retry",
		}},
	}, "tester")
	must(t, err)
	return w
}

// What operators say to limits and queues, and what it answers, in this order.
func TestOperatorsOfLimits(t *testing.T) {
	t.Parallel()
	w := published(t)
	w.exec(`INSERT INTO callq.call_remotes (limit_name, most, remaining, reset_at, answered_at) VALUES ('sockets', 4, 3, now() + interval '1 h', now())`)
	cases := []struct {
		args string
		code int
		says string // on stdout, or on stderr where the code is not 0
	}{
		{"limits list", 0, "100 per 1h, sliding window, per key, by cost"},
		{"limits list", 0, "5 at once"},
		{"limits get sockets", 0, "5 at once"},
		{"limits get nothing", 4, "no such limit: nothing; `callq limits list` shows those in force"},
		{"limits get", 2, "accepts 1 arg(s), received 0"},
		{"limits set stripe 20/1h", 0, "limit stripe: 20 per 1h, sliding window, per key, by cost, slack 1m0s and a later answer, arrive_within 10h0m0s, send_within 5s (set; config: 100 per 1h, sliding window)"},
		{"limits set stripe 20/1h", 0, "limit stripe: as it was"},
		{"limits list", 0, "20 per 1h, sliding window, per key, by cost (set; config: 100 per 1h, sliding window)"},
		{"limits set stripe many", 2, `"many" is not a rate`},
		{"limits set stripe 0", 2, "to let nothing through, pause the limit"},
		{"limits set stripe 7", 2, "it is 20 per 1h, sliding window: a concurrency takes a whole number, such as 20, any other limit a rate, such as 100/1h"},
		{"limits set sockets 7/s", 2, "it is 5 at once: a concurrency takes a whole number, such as 20"},
		{"limits set sockets 7", 0, "limit sockets: 7 at once, anchor finish, slack 500ms and a later answer, arrive_within 10s, send_within 5s (set; config: 5 at once)"},
		{"limits set nothing 7", 4, "no such limit: nothing"},
		{"limits reset stripe", 0, "limit stripe: 100 per 1h"},
		{"limits open stripe", 2, `required flag(s) "reason" not set`},
		{"limits open stripe --reason=", 2, "it is empty"},
		{"limits open nothing --reason clean", 4, "no such limit: nothing"},
		{"limits open stripe --reason clean", 1, "not counted yet"},
		{"limits reset stripe", 0, "limit stripe: as it was"},
		{"limits reset nothing", 4, "no such limit: nothing"},
		{"limits pause stripe --for 1h --reason incident", 0, "limit stripe: paused, 0 unstarted attempts recalled"},
		{"limits list", 0, "paused: incident until 20"},
		{"limits pause stripe --key acct_1", 0, "limit stripe, key acct_1: paused"},
		{"limits list", 0, ", 1 key paused"},
		{"status -o json", 0, `"paused_keys": 1`},
		{"limits get stripe", 0, "acct_1"},
		{"limits get sockets", 0, "the API says: 3 of 4 remain, until 2"},
		{"limits get sockets -o json", 0, `"remote_remaining": 3`},
		{"limits list -o json", 0, `"lowered": null`},
		{"limits get stripe -o json", 0, `"change": "paused for key acct_1: by an operator"`},
		{"limits pause stripe --for 1h --until 2030-01-01T00:00:00Z", 2, "[for until] were all set"},
		{"limits pause stripe --for -1h", 2, "--for"},
		{"limits pause stripe --until tomorrow", 2, "invalid time format"},
		{"limits pause stripe --until=", 2, "invalid time format"},
		{"limits pause stripe --until 2020-01-01T00:00:00Z", 2, "--until 2020-01-01T00:00:00Z has passed"},
		{"limits pause stripe --until 0001-01-01T00:00:00Z", 2, "--until 0001-01-01T00:00:00Z has passed"},
		{"limits pause sockets --key=", 2, `invalid argument "" for "--key" flag: it is empty`},
		{"limits resume stripe --key=", 2, "it is empty"},
		{"limits pause nothing", 4, "no such limit: nothing"},
		{"limits resume stripe", 0, "limit stripe: resumed"},
		{"limits resume stripe", 0, "limit stripe: as it was"},
		{"limits list", 0, ", 1 key paused"},
		{"limits get stripe -o json", 0, `"paused_keys": 1`},
		{"limits resume stripe --key acct_1", 0, "limit stripe, key acct_1: resumed"},
		{"limits get stripe -o json", 0, `"paused_keys": 0`},
		{"limits resume nothing", 4, "no such limit: nothing"},
		{"queues list", 0, "payments"},
		{"queues pause payments --until 2030-01-01T00:00:00Z", 0, "queue payments: paused"},
		{"queues list", 0, "paused until 2030-01-01"},
		{"status", 0, "paused until 2030-01-01"},
		{"queues list -o json", 0, `"paused_until": "2030-01-01T00:00:00Z"`},
		{"queues pause nothing", 4, "no such queue: nothing"},
		{"queues resume payments", 0, "queue payments: resumed"},
		{"queues pause payments --key acct_1", 0, "queue payments, key acct_1: paused"},
		{"queues pause payments --key acct_2 --for 1h", 0, "queue payments, key acct_2: paused"},
		{"queues list", 0, "open, 2 keys paused"},
		{"enqueue", 0, ""},
		{"queues list", 0, "(not in the configuration: its calls wait)  open\n"},
		{"status -o json", 0, `"paused_keys": 2`},
		{"queues resume payments --key acct_1", 0, "queue payments, key acct_1: resumed"},
		{"queues resume payments --key acct_2", 0, "queue payments, key acct_2: resumed"},
		{"queues resume nothing", 4, "no such queue: nothing"},
		{"verify", 0, "every rule holds"},
	}
	for _, c := range cases {
		w.answers(c.code, c.args, c.says)
	}
}

// What may be missing of a limit counts as used, which all who show it say, until it can count no more or an operator
// knows better; then verify says on whose word.
//
//callq:guarantee 6
func TestLimitsOpen(t *testing.T) {
	t.Parallel()
	w, _ := published(t).withRedis()
	w.exec(`UPDATE callq.call_limits SET complete_since = now(), per_key = false`)
	w.exec(`UPDATE callq.call_limit_versions SET per_key = false`)
	w.exec(`UPDATE callq.call_limits SET missing_until = now() + interval '10 s', known_at = now() WHERE name = 'stripe'`)
	w.exec(`INSERT INTO callq.call_usage VALUES ('stripe', '', now() - interval '1 min', 1, 96)`)
	w.exec(`INSERT INTO call_queue (queue, cost) VALUES ('payments', 5)`)
	const missing = "4 units that may be missing and count as used until "
	say := func(words map[string]string) {
		t.Helper()
		for args, says := range words {
			if out := w.run(strings.Fields(args)...).stdout; !strings.Contains(strings.Join(strings.Fields(out), " "), says) {
				t.Errorf("callq %s: want %q\n%s", args, says, out)
			}
		}
	}
	say(map[string]string{
		"limits list": "full, next unit in 59 min, at about ", "status": missing,
		"calls why 1": "limit stripe is full: 96 of 100 units (100 per 1h, sliding window, by cost) are occupied, and it takes 5",
		"doctor":      "what was left of limit stripe at ",
	})
	has(t, w.do("calls", "why", "1"), "besides there are "+missing)
	if a := w.run("limits", "open", "stripe", "--reason", " "); a.code != exitUsage || !strings.Contains(a.stderr, "say why you know") {
		t.Errorf("without a reason: %+v", a)
	}
	has(t, w.do("limits", "open", "stripe", "--reason", "the switch was clean"), "limit stripe: opened")
	if out := w.do("limits", "open", "stripe", "--reason", "again"); out != "limit stripe: as it was\n" {
		t.Error(out)
	}
	if out := w.do("limits", "get", "stripe"); strings.Contains(out, missing) || !strings.Contains(out, "opened: the switch was clean") {
		t.Error(out)
	}
	has(t, w.run("verify").stdout, "who opened limits by hand knew ", "opened: the switch was clean")
	w.exec(`UPDATE callq.call_limits SET missing_until = now() + interval '10 s', known_at = NULL WHERE name = 'stripe'`)
	if out := strings.Join(strings.Fields(w.do("limits", "list")), " "); !strings.Contains(out, "(if you know what was sent: callq limits open stripe)") {
		t.Error(out)
	}
	say(map[string]string{
		"limits list": "shut: what it has used may be missing until ", "calls why 1": "limit stripe is shut: what it has used may be missing until ",
		"doctor": "limit stripe is shut until ",
	})
}

// Limits of every algorithm are shown, set, refused and verified in their own words.
func TestOperatorsOfShapes(t *testing.T) {
	t.Parallel()
	w, _ := newWorld(t).withRedis()
	w.config = `http: {listen: 'off'}
log: {level: error}
limits:
  bursty:  {rate: 10/s, algorithm: token_bucket, burst: 100}
  nightly: {rate: 2/1mo, algorithm: fixed_window, timezone: America/New_York}
  cps:     {rate: 10/s, algorithm: leaky_bucket}
  even:    {rate: 100/s, spread: true, tolerance: 50ms}
  days:    {rate: 6/d, algorithm: fixed_window, timezone: Europe/Berlin, spread: true}
  guessed: {rate: 101/s, algorithm: sliding_window_counter}
  speeds:  {rate: [10_000/d, 10/s]}
  account: {rate: 5/h, per: key, overrides: {acct_1: 50/h}}
queues:
  q: {limits: [bursty, cps, even, days, guessed, speeds, account]}
  n: {limits: [nightly]}
`
	w.exec(`INSERT INTO callq.call_workers VALUES ('w1', 'http', '{http}', '{}', 40, now(), now() + interval '1 h')`)
	w.exec(`INSERT INTO call_queue (queue, key) SELECT 'n', 'acct_1' FROM generate_series(1, 5)`)
	for range 3 { // the second finds the limits counted
		w.do("dispatch", "--once")
	}
	for _, c := range []struct {
		args string
		code int
		says []string
	}{
		{"limits list", 0, []string{
			"10 per 1s, token bucket, burst 100", "2 per 1mo, fixed window, America/New_York", "1 per 100ms, leaky bucket",
			"1 per 10ms, leaky bucket, tolerance 50ms", "1 per 270m, leaky bucket, Europe/Berlin", "101 per 1s, sliding window counter",
			"speeds/1d", "10000 per 1d, sliding window", "5 per 1h, sliding window, per key (1 of its own)",
		}},
		{"calls why 5", 0, []string{"limit nightly is full: 2 of 2 units (2 per 1mo, fixed window, America/New_York) are occupied", "-01 0"}}, // from the first of the next month
		{"limits forecast nightly", 0, []string{"2 per 1mo, fixed window", "-01 0"}},
		{"limits set bursty 5/s", 0, []string{"limit bursty: 5 per 1s, token bucket, burst 100, slack 500ms and a later answer, arrive_within 10s, send_within 100ms (set; config: 10 per 1s, token bucket, burst 100)"}},
		{"limits set nightly 3/3mo", 0, []string{"3 per 3mo, fixed window, America/New_York"}},
		{"limits set nightly 3/90m", 2, []string{"it is 3 per 3mo, fixed window, America/New_York: ", "not one of a calendar"}},
		{"limits set cps 4/s", 0, []string{"1 per 250ms, leaky bucket"}},
		{"limits set even 200/s", 0, []string{"limit even: 1 per 5ms, leaky bucket, tolerance 50ms, slack"}},
		{"limits set guessed 50/s", 0, []string{"limit guessed: 50 per 1s, sliding window counter, slack"}},
		{"limits set days 3/d", 0, []string{"limit days: 1 per 9h, leaky bucket, Europe/Berlin, slack"}},
		{"limits set bursty 5/mo", 2, []string{"it is 5 per 1s, token bucket, burst 100: a window of 1mo needs algorithm: fixed_window"}},
		{"limits set speeds/1d 5/d", 0, []string{"limit speeds/1d: 5 per 1d, sliding window"}},
		{"limits set account 5/m", 2, []string{"it is 5 per 1h, sliding window: keys have units of their own in its window"}},
		{"limits reset nightly", 0, []string{"2 per 1mo, fixed window, America/New_York"}},
		{"verify", 0, []string{"2 per 1mo, fixed window, America/New_York", "every rule holds"}},
	} {
		w.answers(c.code, c.args, c.says...)
	}
}

// What the API refused tells which limit fits; of a limit per key, what it refused of the key that it refused most.
func TestLimitsAdvise(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.config = `limits:
  acme:    {rate: 100/s}
  tenants: {rate: 100/s, per: key}
  quiet:   {rate: 10/s}
  unused:  {rate: 10/s}
  sockets: {concurrency: 5}
queues:
  q: {limits: [acme, tenants, quiet, unused, sockets]}
`
	w.do("config", "apply")
	// A hundred at once, of which the first is let through, and the next hundred 1.1 s later.
	const sent = `INSERT INTO call_attempts (call_id, attempt, code, cost, claimed_at, started_at, arrived_by, finished_at, outcome, queue, task, key, charged)
SELECT %d + i, 1, CASE WHEN refused THEN 429 ELSE 200 END, 1, at - interval '100 ms', at, at + interval '3 ms', at + interval '5 ms',
    CASE WHEN refused THEN 'refused' ELSE 'done' END, 'q', 'http', '%[3]s',
    jsonb_build_array(jsonb_build_object('limit', '%[2]s', 'key', '%[3]s', 'cost', 1, 'until', at + interval '3 ms'))
FROM (
    SELECT i, i %% 100 > 0 AND %[4]t AS refused, now() - interval '1 h' + i / 100 * interval '1.1 s' + i %% 100 * interval '0.05 ms' AS at
    FROM generate_series(0, 999) AS s (i)
) a`
	for i, of := range []struct {
		limit, key string
		refused    bool
	}{{"acme", "", true}, {"tenants", "acct_1", false}, {"tenants", "acct_2", true}, {"quiet", "", false}} {
		w.exec(fmt.Sprintf(sent, 1000*i, of.limit, of.key, of.refused))
	}
	for args, words := range map[string][]string{
		"acme": {
			"limit     acme: 100 per 1s, sliding window\nrefused   990 of 1,000 requests\nadvice    leaky_bucket 100/s; uses about 76.9 a second, 77 % of the API's rate\n",
			"refused were those within 10 ms of another that was let through: that explains 990 of 990 refusals, and would have refused 0 of 10 requests",
			"write     acme: {rate: 100/s, algorithm: leaky_bucket}\n",
		},
		"acme -o json": {
			`"verdict": "change"`, `"algorithm": "leaky_bucket"`, `"rate": "100/s"`, `"burst": null`, `"spacing": "10ms"`, `"share": 0.77`,
			`"evidence": "refused were those within 10 ms`, `"config": "acme: {rate: 100/s, algorithm: leaky_bucket}"`, `"key": null`,
		},
		"tenants":         {"limit     tenants, key acct_2: 100 per 1s", "write     tenants: {rate: 100/s, algorithm: leaky_bucket, per: key}"},
		"quiet":           {"leave it as it is", "none of 1,000 requests was refused"},
		"quiet -o json":   {`"verdict": "fits"`, `"config": "quiet: {rate: 10/s, algorithm: sliding_window}"`},
		"unused":          {"none: the ledger cannot tell", "the ledger has no request under it", "run 200 calls"},
		"sockets -o json": {`"verdict": "unknown"`, `"algorithm": null`, `"config": null`, "calls at once"},
	} {
		w.answers(exitDone, "limits advise "+args, words...)
	}
	w.answers(exitNotFound, "limits advise nothing", "no such limit: nothing")
	w.answers(exitUsage, "limits advise", "accepts 1 arg(s), received 0")
}

// Whatever says why calls wait names the hours of their queue, and when it opens.
func TestHoursAreShown(t *testing.T) {
	t.Parallel()
	w, _ := newWorld(t).withRedis()
	zone, err := time.LoadLocation("Asia/Kolkata") // its clocks never change
	must(t, err)
	now := time.Now().In(zone).Truncate(time.Minute)
	span := func(from, to time.Duration) string {
		return now.Add(from).Format("15:04") + "-" + now.Add(to).Format("15:04") + " Asia/Kolkata"
	}
	opens, closes := now.Add(5*time.Hour), now.Add(6*time.Hour)
	shut, open := span(5*time.Hour, 7*time.Hour), span(-5*time.Hour, 6*time.Hour)
	w.config = fmt.Sprintf("limits: {api: {rate: 1/h}, other: {rate: 1/h}, sockets: {concurrency: 3}}\n"+
		"queues: {shut: {limits: [api], hours: %q}, open: {limits: [other], hours: %q}, free: {limits: [sockets]}}\n", shut, open)
	w.exec(`INSERT INTO call_queue (queue) SELECT queue FROM unnest('{shut,open,free}'::text[]) AS q (queue), generate_series(1, 20)`)
	w.exec(`INSERT INTO callq.call_workers VALUES ('w1', 'http', '{http}', '{}', 40, now(), now() + interval '1 h')`)
	for range 3 { // the second finds the limits counted
		w.do("dispatch", "--once")
	}

	until := "outside its hours until " + hours.When(opens)
	why := decode[admin.Why](t, w.do("calls", "why", "1", "-o", "json"))
	r := why.Reasons[0]
	if r.Code != "outside_hours" || r.Text != "queue shut is "+until+" (hours: "+shut+")" || r.Until == nil || !r.Until.Equal(opens) {
		t.Errorf("calls why: %+v", r)
	}
	s := decode[admin.Status](t, w.do("status", "-o", "json"))
	rows := map[string]admin.Queue{}
	for _, q := range s.Queues {
		rows[q.Name] = q
	}
	if q := rows["shut"]; q.Hours != shut || !q.OutsideHours || q.HoursUntil == nil || !q.HoursUntil.Equal(opens) || q.Dispatched != 0 {
		t.Errorf("the queue that is shut: %+v", q)
	}
	if q := rows["open"]; q.Hours != open || q.OutsideHours || q.HoursUntil == nil || !q.HoursUntil.Equal(closes) || q.Dispatched != 1 {
		t.Errorf("the queue that is open: %+v", q)
	}
	if q := rows["free"]; q.Hours != "" || q.OutsideHours || q.HoursUntil != nil || q.Dispatched != 3 {
		t.Errorf("the queue without hours: %+v", q)
	}
	w.answers(exitDone, "calls why 1", "queue shut is "+until)
	w.answers(exitDone, "status", until, "open until "+hours.When(closes))
	w.answers(exitDone, "queues list", until, "open until "+hours.When(closes))
	// Of 20 calls at one an hour two start in each day's two hours. Of 19, five today, eleven tomorrow, three the day after.
	for _, f := range decode[[]admin.Forecast](t, w.do("limits", "forecast", "-o", "json")) {
		last := map[string]time.Time{"api": opens.AddDate(0, 0, 9).Add(time.Hour), "other": now.Add(-5*time.Hour).AddDate(0, 0, 2).Add(2 * time.Hour)}[f.Limit]
		if f.Limit != "sockets" && (f.Until == nil || f.Until.Sub(last).Abs() > 5*time.Minute) {
			t.Errorf("the last call of limit %s starts at %v, want %v", f.Limit, f.Until, last)
		}
	}
	w.answers(exitDone, "limits forecast", "unknown: no call of queue free ended within a day")
	w.answers(exitDone, "config show", shut)
	w.do("queues", "pause", "shut", "--reason", "incident")
	w.answers(exitDone, "queues list", "paused: incident, "+until)

	w.exec(`UPDATE callq.call_queues SET hours = '09:00-10:00 Mars/Olympus' WHERE name = 'shut'`)
	w.answers(exitDone, "queues list", "open in hours whose zone is not known here: 09:00-10:00 Mars/Olympus")
}
