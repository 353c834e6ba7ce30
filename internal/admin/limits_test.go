package admin

import (
	"strings"
	"testing"
	"time"

	"github.com/callq/callq/internal/pgtest"
)

// Of a limit that very many keys use, the one that uses most is shown.
func TestFullestKey(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	exec(t, pool, `INSERT INTO callq.call_limits (name, version, rate, window_size, bucket_width, shape, per_key, slack, send_within, queues, applied_at, applied_by, epoch, complete_since)
		SELECT name, 1, 1000, span, span / 200, shape, true, '1 s', '1 s', '{q}', now(), '', callq.epoch(), now()
		FROM (VALUES ('each', '1 h'::interval, '{}'::jsonb), ('bucket', '20 h', '{"algorithm": "token_bucket", "period": "1h", "burst": 1000}')) AS l (name, span, shape)`)
	exec(t, pool, `INSERT INTO callq.call_usage SELECT name, key, now() - n * interval '10 ms', 0, used
		FROM (VALUES ('each'), ('bucket')) AS l (name)
		CROSS JOIN (SELECT 'full' AS key, 700 AS used, 1 AS n UNION ALL SELECT 'u' || i, 1, i FROM generate_series(1, 2000) i) k`)
	limits, err := ReadLimits(t.Context(), pool)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range limits {
		if l.Occupied < 696 || l.Occupied > 701 {
			t.Errorf("of %s %d are occupied, want 700", l.Name, l.Occupied)
		}
	}
	exec(t, pool, `INSERT INTO callq.call_open (call_id, attempt, message_no, batch, cost, claimed_at, handed_at, start_by, epoch, pool, queue, task, key, limits, keys, costs)
		SELECT i, 1, 0, i, 400, now(), now(), now(), callq.epoch(), 'http', 'q', 'http', 'u8', '{each}', '{u8}', '{400}' FROM generate_series(1, 2) i`)
	limits, err = ReadLimits(t.Context(), pool)
	if err != nil || limits[1].Occupied != 801 {
		t.Errorf("of another key 801 are occupied, 800 of them by open attempts: %+v, %v", limits, err)
	}
	limits, err = snapshot(t.Context(), pool, func(r *reader) []Limit { return r.limits(nil, new("u7")) })
	if err != nil || len(limits) != 2 || limits[0].Occupied > 1 || limits[1].Occupied != 1 {
		t.Errorf("of one key: %+v, %v", limits, err)
	}
}

// A limit has room on the screens when it has room for a claim: also after Postgres's clock was set forward, and where the API says
// that less remains.
func TestRoomIsThatOfClaims(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	exec(t, pool, `INSERT INTO callq.call_limits (name, version, rate, window_size, bucket_width, per_key, slack, send_within, queues, applied_at, applied_by, epoch, complete_since)
		SELECT 'api', 1, 10, '1 h', '1 s', false, '1 s', '1 s', '{q}', now(), '', callq.epoch(), now()`)
	exec(t, pool, `INSERT INTO callq.call_usage VALUES ('api', '', now() - interval '70 min', 0, 10)`)
	room := func(want int64) {
		t.Helper()
		if limits, err := ReadLimits(t.Context(), pool); err != nil || limits[0].Room != want {
			t.Errorf("%+v (%v), want room for %d", limits, err, want)
		}
	}
	room(10)
	exec(t, pool, `INSERT INTO callq.call_clock_gains (at, by) VALUES (now() - interval '10 min', '20 min')`)
	room(0)
	exec(t, pool, `DELETE FROM callq.call_clock_gains`)
	exec(t, pool, `INSERT INTO callq.call_remotes (limit_name, key, answered_at, reset_at, lowered) VALUES ('api', '', now(), now() + interval '1 h', 3)`)
	room(3)
}

// A limit that is shut until a dispatcher has looked is a problem, whatever may be missing of it besides.
func TestProblemsOfAShutLimit(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		state          string
		known, missing *time.Time
		problems       int
		notes          int
	}{
		{"open", nil, nil, 0, 0},
		{"open", &at, &at, 0, 1},
		{shutMissing, &at, &at, 0, 1},
		{"open", &at, new(at.Add(2 * time.Hour)), 1, 0},
		{shutMissing, nil, &at, 1, 0},
		{"shut: counting its usage", nil, nil, 1, 0},
		{"shut: counting its usage", nil, &at, 2, 0},
		{"shut: Postgres failed over or was restored", &at, &at, 1, 1},
	} {
		l := Limit{
			Name: "api", Queues: []string{"q"}, LimitState: LimitState{State: c.state, MissingUntil: c.missing},
			limitFacts: limitFacts{KnownAt: c.known, now: at},
		}
		problems, notes := 0, 0
		for _, p := range (&Status{Limits: []Limit{l}}).Problems() {
			switch {
			case p.Check != "limits":
			case p.Level == Note:
				notes++
			default:
				problems++
			}
		}
		if problems != c.problems || notes != c.notes {
			t.Errorf("%s, known %v, missing %v: %d problems and %d notes, want %d and %d",
				c.state, c.known != nil, c.missing != nil, problems, notes, c.problems, c.notes)
		}
	}
}

// However many notes come first, a shut limit is told.
func TestProblemBehindNotes(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	var s Status
	for range 12 {
		l := Limit{Name: "missing", Queues: []string{"q"}, LimitState: LimitState{State: "open", MissingUntil: &at}}
		l.KnownAt, l.now = &at, at
		s.Limits = append(s.Limits, l)
	}
	s.Limits = append(s.Limits, Limit{Name: "last", Queues: []string{"q"}, LimitState: LimitState{State: "shut: counting its usage"}})
	notes, told := 0, false
	for _, p := range s.Problems() {
		if p.Level == Note {
			notes++
		}
		told = told || p.Limit == "last" && p.Level == Problem
	}
	if notes != 10 || !told {
		t.Errorf("%d notes, want 10; the shut limit is told: %t", notes, told)
	}
}

// A limit that the API closed says so, and then that one call goes first.
func TestStateOfARefusedLimit(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	exec(t, pool, `INSERT INTO callq.call_limits (name, version, rate, window_size, bucket_width, slack, send_within, queues, applied_at, applied_by, epoch, complete_since)
		VALUES ('api', 1, 10, '1 h', '3.6 s', '1 s', '1 s', '{q}', now(), '', callq.epoch(), now())`)
	exec(t, pool, `INSERT INTO callq.call_pauses (what, name, until, reason, at, by, spell) VALUES ('limit', 'api', now() + interval '1 min', 'call 5: 429', now(), 'w', '1 s')`)
	for _, c := range []struct{ sql, state, cause string }{
		{`SELECT`, "refused: call 5: 429 until 20", "refused"},
		{`UPDATE callq.call_pauses SET until = now() - interval '1 s'`, "probed: one call goes before the others, for call 5: 429 until 20", "refused"},
		{`UPDATE callq.call_pauses SET spell = NULL`, "open", ""},
		{`UPDATE callq.call_pauses SET until = 'infinity', reason = 'an incident'`, "paused: an incident", "paused"},
	} {
		exec(t, pool, c.sql)
		limits, err := ReadLimits(t.Context(), pool)
		if err != nil {
			t.Fatal(err)
		}
		if l := limits[0]; !strings.HasPrefix(l.StateText(), c.state) || l.closed() != c.cause || (l.Room == 0) != (c.cause != "") {
			t.Errorf("%s: it is %q for %q, with room for %d", c.sql, l.StateText(), l.closed(), l.Room)
		}
	}
}
