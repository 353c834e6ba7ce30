package main

import (
	"strings"
	"testing"

	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/policy"
	"github.com/jackc/pgx/v5/pgxpool"
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
	cases := []struct {
		args string
		code int
		says string // on stdout, or on stderr where the code is not 0
	}{
		{"limits list", 0, "100 per 1h, sliding window, per key, by cost"},
		{"limits list", 0, "5 at once"},
		{"limits get sockets", 0, "5 at once"},
		{"limits get nothing", 4, "no such limit: nothing; `callq limits list` shows those in force"},
		{"limits get", 2, "callq limits get takes LIMIT: 0 were given"},
		{"limits set stripe 20/1h", 0, "limit stripe: 20 per 1h, sliding window, per key, by cost, slack 1m0s, send_within 5s (set; config: 100 per 1h, sliding window)"},
		{"limits set stripe 20/1h", 0, "limit stripe: as it was"},
		{"limits list", 0, "20 per 1h, sliding window, per key, by cost (set; config: 100 per 1h, sliding window)"},
		{"limits set stripe many", 2, `"many" is not a rate`},
		{"limits set stripe 0", 2, "to let nothing through, pause the limit"},
		{"limits set stripe 7", 2, "stripe is 20 per 1h, sliding window: set a rate, such as 100/1h"},
		{"limits set sockets 7/s", 2, "sockets is 5 at once: set a whole number, such as 5"},
		{"limits set sockets 7", 0, "limit sockets: 7 at once, anchor finish, slack 500ms, send_within 5s (set; config: 5 at once)"},
		{"limits set nothing 7", 4, "no such limit: nothing"},
		{"limits reset stripe", 0, "limit stripe: 100 per 1h"},
		{"limits open stripe", 2, "--reason is missing: say why"},
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
		{"limits get stripe -o json", 0, `"change": "paused for key acct_1: by an operator"`},
		{"limits pause stripe --for 1h --until 2030-01-01T00:00:00Z", 2, "give one of them"},
		{"limits pause stripe --for -1h", 2, "--for"},
		{"limits pause stripe --until tomorrow", 2, "is not a time"},
		{"limits pause stripe --until=", 2, "is not a time"},
		{"limits pause stripe --until 2020-01-01T00:00:00Z", 2, "--until 2020-01-01T00:00:00Z has passed"},
		{"limits pause sockets --key=", 2, "--key is empty; leave it out for the calls of all keys"},
		{"limits resume stripe --key=", 2, "--key is empty"},
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
		a := w.run(strings.Fields(c.args)...)
		out := a.stdout
		if c.code != 0 {
			out = a.stderr
		}
		if a.code != c.code || !strings.Contains(out, c.says) {
			t.Errorf("callq %s: exit code %d, want %d and %q\n%s%s", c.args, a.code, c.code, c.says, a.stdout, a.stderr)
		}
	}
}

// What may be missing of a limit counts as used, which all who show it say, until it can count no more or an operator
// knows better; then verify says on whose word.
//
//callq:guarantee 6
func TestLimitsOpen(t *testing.T) {
	t.Parallel()
	w, _ := published(t).withRedis()
	w.exec(`UPDATE call_limits SET complete_since = now(), per_key = false`)
	w.exec(`UPDATE call_limit_versions SET per_key = false`)
	w.exec(`UPDATE call_limits SET missing_until = now() + interval '10 s', known_at = now() WHERE name = 'stripe'`)
	w.exec(`INSERT INTO call_usage VALUES ('stripe', '', now() - interval '1 min', 1, 96)`)
	w.exec(`INSERT INTO call_queue (queue, cost) VALUES ('payments', 5)`)
	const missing = "4 units that may be missing and count as used until "
	for args, says := range map[string]string{
		"limits list": "open, but for " + missing, "status": missing,
		"calls why 1": "limit stripe is full: 96 of 100 units (100 per 1h, sliding window, by cost) are occupied, and it takes 5",
		"doctor":      "what was left of limit stripe at ",
	} {
		if out := w.run(strings.Fields(args)...).stdout; !strings.Contains(strings.Join(strings.Fields(out), " "), says) {
			t.Errorf("callq %s: want %q\n%s", args, says, out)
		}
	}
	has(t, w.do("calls", "why", "1"), "besides there are "+missing)
	has(t, w.do("limits", "open", "stripe", "--reason", "the switch was clean"), "limit stripe: opened: the switch was clean (")
	if out := w.do("limits", "open", "stripe", "--reason", "again"); out != "limit stripe: as it was\n" {
		t.Error(out)
	}
	if out := w.do("limits", "get", "stripe"); strings.Contains(out, missing) || !strings.Contains(out, "opened: the switch was clean (") {
		t.Error(out)
	}
	out := w.run("verify").stdout
	if !strings.Contains(out, "who opened limits by hand knew ") || !strings.Contains(out, "opened: the switch was clean (") {
		t.Error(out)
	}
	w.exec(`UPDATE call_limits SET missing_until = now() + interval '10 s', known_at = NULL WHERE name = 'stripe'`)
	for args, says := range map[string]string{
		"limits list": "shut: what it has used may be missing until ", "calls why 1": "limit stripe is shut: what it has used may be missing until ",
		"doctor": "limit stripe is shut until ",
	} {
		if out := w.run(strings.Fields(args)...).stdout; !strings.Contains(strings.Join(strings.Fields(out), " "), says) {
			t.Errorf("callq %s: want %q\n%s", args, says, out)
		}
	}
}
