package admin

import (
	"testing"
	"time"

	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/pgtest"
)

func TestForecast(t *testing.T) {
	t.Parallel()
	seconds, cost, key := 2.0, 30.0, "big"
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	next := time.Hour + limit.Margin(time.Hour)
	minutely := Limit{Units: 10, Window: time.Minute}
	hourly := Limit{Units: 5, Window: time.Hour}
	atOnce := Limit{Units: 4}
	costly := Limit{Units: 300, Window: time.Minute, CountCost: true}
	daily := Limit{Units: 10, Window: 24 * time.Hour, Shape: limit.Shape{Algorithm: limit.FixedWindow, Period: "1d"}}
	bucket := Limit{Units: 10, Window: 200 * time.Second, Shape: limit.Shape{Algorithm: limit.TokenBucket, Period: "1s", Burst: 100}}
	open := func(hours string) map[string]string { return map[string]string{"q": hours} }
	for name, c := range map[string]struct {
		rule     Limit
		occupied int64      // all units are
		freed    *time.Time // when the first of them comes free
		d        demand
		want     time.Duration // below 0: unknown
	}{
		"nothing waits":     {minutely, 0, nil, demand{}, 0},
		"there is room":     {minutely, 0, nil, demand{Waiting: 10}, 0},
		"three windows":     {minutely, 0, nil, demand{Waiting: 40}, 3 * time.Minute},
		"all is occupied":   {minutely, 10, nil, demand{Waiting: 40}, 4 * time.Minute},
		"the largest key's": {Limit{Units: 10, Window: time.Minute, PerKey: true}, 0, nil, demand{Waiting: 90, Key: &key, OfKey: 20}, time.Minute},
		"by cost":           {costly, 0, nil, demand{Waiting: 40, Cost: &cost}, 3 * time.Minute},
		"by cost, unknown":  {costly, 0, nil, demand{Waiting: 600}, time.Minute},
		"nothing yet free":  {hourly, 5, &now, demand{Waiting: 2}, next},
		"nor the next":      {hourly, 5, &now, demand{Waiting: 7}, time.Hour + next},
		"the calendar's":    {daily, 10, &now, demand{Waiting: 15}, 36*time.Hour + time.Minute},
		"a bucket":          {bucket, 0, nil, demand{Waiting: 150}, 5 * time.Second},
		"at once":           {atOnce, 0, nil, demand{Waiting: 40, Seconds: &seconds}, 20 * time.Second},
		"at once, unknown":  {atOnce, 0, nil, demand{Waiting: 40}, -1},
		"outside hours":     {minutely, 0, nil, demand{Waiting: 40, Hours: open("13:00-14:00")}, -1},
		"closes before":     {minutely, 0, nil, demand{Waiting: 40, Hours: open("11:00-12:02")}, -1},
		"closes later":      {minutely, 0, nil, demand{Waiting: 40, Hours: open("11:00-12:03")}, 3 * time.Minute},
		"paused":            {minutely, 0, nil, demand{Waiting: 40}, -1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := c.rule
			l.State, l.now = "open", now
			if name == "paused" {
				l.State = "paused: x"
			}
			l.reckon(usage{Units: c.occupied, FreedAt: c.freed}, nil)
			f := l.forecast(c.d)
			if c.want < 0 && f.Lasts != nil || c.want >= 0 && (f.Lasts == nil || *f.Lasts != c.want) {
				t.Errorf("lasts %v, want %v: %+v", f.Lasts, c.want, f)
			}
		})
	}
}

// Of a limit that very many keys use, the one that uses most is shown.
func TestFullestKey(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	exec(t, pool, `INSERT INTO call_limits (name, version, rate, window_size, shape, per_key, slack, send_within, queues, applied_at, applied_by, epoch, complete_since)
		SELECT name, 1, 1000, span, shape, true, '1 s', '1 s', '{q}', now(), '', callq_epoch(), now()
		FROM (VALUES ('each', '1 h'::interval, '{}'::jsonb), ('bucket', '20 h', '{"algorithm": "token_bucket", "period": "1h", "burst": 1000}')) AS l (name, span, shape)`)
	exec(t, pool, `INSERT INTO call_usage SELECT name, key, now() - n * interval '10 ms', 0, used
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
	exec(t, pool, `INSERT INTO call_open (call_id, attempt, message_no, batch, cost, claimed_at, handed_at, start_by, epoch, pool, queue, task, key, limits, keys, costs)
		SELECT i, 1, 0, i, 400, now(), now(), now(), callq_epoch(), 'http', 'q', 'http', 'u8', '{each}', '{u8}', '{400}' FROM generate_series(1, 2) i`)
	limits, err = ReadLimits(t.Context(), pool)
	if err != nil || limits[1].Occupied != 801 {
		t.Errorf("of another key 801 are occupied, 800 of them by open attempts: %+v, %v", limits, err)
	}
	limits, err = snapshot(t.Context(), pool, func(r *reader) []Limit { return r.limits(nil, new("u7")) })
	if err != nil || len(limits) != 2 || limits[0].Occupied > 1 || limits[1].Occupied != 1 {
		t.Errorf("of one key: %+v, %v", limits, err)
	}
}

// What one key uses is read without all usage.
func TestUsageOfOneKey(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	exec(t, pool, `INSERT INTO call_limits (name, version, rate, window_size, per_key, slack, send_within, queues, applied_at, applied_by, epoch, complete_since)
		SELECT name, 1, 1000, '1 h', true, '1 s', '1 s', '{q}', now(), '', callq_epoch(), now() FROM unnest('{each,other}'::text[]) AS l (name)`)
	exec(t, pool, `INSERT INTO call_usage SELECT 'each', 'u' || i, now(), 0, 1 FROM generate_series(1, 30000) i`)
	exec(t, pool, `VACUUM ANALYZE`)
	settings := map[string]string{"jit": "off", "plan_cache_mode": "force_custom_plan"}
	if n := pgtest.Work(t, pool, settings, usageSQL, "'{each,other}'", "ARRAY[now() - interval '1 h', now() - interval '1 h']", "'u7'", "false"); n > 2000 {
		t.Errorf("to read what one of 30,000 keys uses, plans handled %d", n)
	}
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
		{shutMissing, nil, &at, 1, 0},
		{"shut: counting its usage", nil, nil, 1, 0},
		{"shut: counting its usage", nil, &at, 2, 0},
		{"shut: Postgres failed over or was restored", &at, &at, 1, 1},
	} {
		l := Limit{
			Name: "api", Queues: []string{"q"}, LimitUse: LimitUse{State: c.state, MissingUntil: c.missing},
			limitFacts: limitFacts{KnownAt: c.known},
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
		l := Limit{Name: "missing", Queues: []string{"q"}, LimitUse: LimitUse{State: "open", MissingUntil: &at}}
		l.KnownAt = &at
		s.Limits = append(s.Limits, l)
	}
	s.Limits = append(s.Limits, Limit{Name: "last", Queues: []string{"q"}, LimitUse: LimitUse{State: "shut: counting its usage"}})
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
