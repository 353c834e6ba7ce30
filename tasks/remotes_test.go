package tasks

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/callq/callq/internal/httptask"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/pgtest"
)

// said is an answer made by hand.
type said struct {
	refusal *httptask.Refusal
	remotes []httptask.Remote
}

func (s said) Refusal(httptask.Forms) *httptask.Refusal { return s.refusal }

// Remotes leaves out what the rule turns off by its name.
func (s said) Remotes(f httptask.Forms) []httptask.Remote {
	return slices.DeleteFunc(slices.Clone(s.remotes), func(r httptask.Remote) bool { return slices.Contains(f.Off, r.Name) })
}

func fromA(hosts []string) bool { return len(hosts) == 0 || slices.Contains(hosts, "a") }

// Which limit an answer is about.
func TestRemotesOf(t *testing.T) {
	t.Parallel()
	window := limit.Rate{Units: 10, Window: time.Minute}
	api, day := ledger.RemoteRule{Name: "api", Rate: window}, ledger.RemoteRule{Name: "Day", Rate: window}
	sockets := ledger.RemoteRule{Name: "sockets", Rate: limit.Rate{Units: 3}}
	elsewhere := ledger.RemoteRule{Name: "elsewhere", Rate: window, Hosts: []string{"b"}}
	here := ledger.RemoteRule{Name: "here", Rate: window, Hosts: []string{"a"}, PerKey: true}
	tokens := ledger.RemoteRule{Name: "tpm", Rate: window, CountCost: true}
	off := ledger.RemoteRule{Name: "api", Rate: window, Off: []string{"burst"}}
	limits := []string{"api", "Day", "sockets", "elsewhere", "here", "tpm"}
	keys := []string{"", "", "", "k1", "k2", ""}
	for name, c := range map[string]struct {
		rules   []ledger.RemoteRule
		refused bool
		says    string // names, with what remains
		want    string // limits and keys, with what remains
	}{
		"the one with a window":       {[]ledger.RemoteRule{sockets, api}, false, `{"": 7}`, `{"api/": 7}`},
		"by another name":             {[]ledger.RemoteRule{sockets, api}, false, `{"minute": 7}`, `{"api/": 7}`},
		"that is of this host":        {[]ledger.RemoteRule{elsewhere, here}, false, `{"": 7}`, `{"here/k2": 7}`},
		"none of this host":           {[]ledger.RemoteRule{elsewhere}, false, `{"": 7, "elsewhere": 6}`, `{}`},
		"none of two":                 {[]ledger.RemoteRule{api, day}, false, `{"": 7}`, `{}`},
		"the one of two by its name":  {[]ledger.RemoteRule{api, day}, false, `{"day": 7, "": 8}`, `{"Day/": 7}`},
		"both by their names":         {[]ledger.RemoteRule{api, day, sockets}, false, `{"day": 7, "api": 8, "sockets": 2}`, `{"Day/": 7, "api/": 8, "sockets/": 2}`},
		"by its name, not the other":  {[]ledger.RemoteRule{api}, false, `{"day": 7, "api": 8}`, `{"api/": 8}`},
		"another by its name":         {[]ledger.RemoteRule{api, sockets}, false, `{"sockets": 2}`, `{"sockets/": 2}`},
		"requests of several":         {[]ledger.RemoteRule{api}, false, `{"tokens": 7, "requests": 8}`, `{"api/": 8}`},
		"tokens of several":           {[]ledger.RemoteRule{tokens}, false, `{"tokens": 7, "requests": 8}`, `{"tpm/": 7}`},
		"none of several":             {[]ledger.RemoteRule{api}, false, `{"burst": 7, "daily": 8}`, `{}`},
		"the first without a name":    {[]ledger.RemoteRule{api}, false, `{"burst": 7, "": 8}`, `{"api/": 8}`},
		"without what is off":         {[]ledger.RemoteRule{off}, false, `{"burst": 7, "daily": 8}`, `{"api/": 8}`},
		"a refusal is about no limit": {[]ledger.RemoteRule{api}, true, `{"": 0}`, `{}`},
		"it is not known any more":    {nil, false, `{"": 0}`, `{}`},
	} {
		names := map[string]int64{}
		if err := json.Unmarshal([]byte(c.says), &names); err != nil {
			t.Fatal(err)
		}
		var answer said
		if c.refused {
			answer.refusal = &httptask.Refusal{}
		}
		for name, n := range names {
			answer.remotes = append(answer.remotes, httptask.Remote{Name: name, Limit: -1, Remaining: n, Reset: -1})
		}
		found := map[string]int64{}
		for _, r := range remotesOf(map[string]noted{"": {limits: limits, keys: keys, says: answer, from: fromA}}, c.rules, clockReading{}) {
			if r.Most != nil || r.Reset != nil {
				t.Errorf("%s: it says more than it knows: %+v", name, r)
			}
			found[r.Limit+"/"+r.Key] = *r.Remaining
		}
		if text, _ := json.Marshal(found); string(text) != spaceless(c.want) {
			t.Errorf("%s: %s, want %s", name, text, c.want)
		}
	}
}

func spaceless(text string) string {
	var to map[string]int64
	_ = json.Unmarshal([]byte(text), &to)
	bare, _ := json.Marshal(to)
	return string(bare)
}

// Of all answers about a limit the newest counts. Its times are translated to Postgres's clock.
func TestNewestRemotes(t *testing.T) {
	t.Parallel()
	zero, pg := time.Now(), time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	var r remotes
	add := func(host string, at time.Duration, remaining int64) {
		r.add(noted{
			limits: []string{"api"}, keys: []string{""}, host: host, from: fromA, at: zero.Add(at), counted: zero.Add(at - time.Second),
			says: said{remotes: []httptask.Remote{{Limit: 10, Remaining: remaining, Reset: time.Minute}}},
		})
	}
	add("a", 3*time.Second, 7)
	add("a", 2*time.Second, 8)
	add("other", 4*time.Second, 6)
	for i := range 2 * maxRemotes {
		add(fmt.Sprint(i), time.Second, 9)
	}
	add("a", 5*time.Second, 5)
	taken := r.take()
	if len(taken) != maxRemotes || len(r.take()) != 0 {
		t.Errorf("%d were noted", len(taken))
	}
	rule := ledger.RemoteRule{Name: "api", Rate: limit.Rate{Units: 10, Window: time.Minute}, Now: pg}
	c := clockReading{at: pg, sent: zero.Add(6 * time.Second), received: zero.Add(7 * time.Second)}
	told := remotesOf(taken, []ledger.RemoteRule{rule}, c)
	if len(told) != 1 || *told[0].Remaining != 5 || *told[0].Most != 10 || !told[0].Answered.Equal(pg.Add(-2*time.Second)) ||
		!told[0].Reset.Equal(pg.Add(59*time.Second)) || !told[0].Since.Equal(rule.Rate.Since(pg.Add(-3*time.Second), 0)) {
		t.Errorf("told %+v", told)
	}
}

// A worker stores what was noted, once.
func TestTellRemotes(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	if _, err := pool.Exec(t.Context(), `INSERT INTO callq.call_limits (name, version, rate, window_size, bucket_width, slack, send_within, queues, applied_at, applied_by, complete_since, epoch)
		VALUES ('api', 1, 10, '1 m', '60 ms', '1 s', '1 s', '{q}', now(), '', now(), callq.epoch())`); err != nil {
		t.Fatal(err)
	}
	w := &Worker{session: session{db: pgtest.AsDaemon(t, pool)}}
	now := time.Now()
	w.remotes.add(noted{
		limits: []string{"api"}, keys: []string{""}, from: fromA, at: now, counted: now,
		says: said{remotes: []httptask.Remote{{Limit: 8, Remaining: 3, Reset: time.Minute}}},
	})
	for range 2 {
		if err := w.tellRemotes(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	var is bool
	if err := pool.QueryRow(t.Context(), `SELECT most = 8 AND remaining = 3 AND lowered = 3 AND reset_at > now() AND answered_at < now() FROM callq.call_remotes`).Scan(&is); err != nil || !is {
		t.Errorf("stored: %t, %v", is, err)
	}
}
