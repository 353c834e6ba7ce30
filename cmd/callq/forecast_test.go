package main

import (
	"strings"
	"testing"
	"time"

	"github.com/callq/callq/internal/limit"
)

func TestForecast(t *testing.T) {
	t.Parallel()
	seconds, cost, key := 2.0, 30.0, "big"
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	full := limitRow{State: "open", Units: 5, Window: time.Hour, Occupied: 5, FreedAt: new(now)}
	next := time.Hour + limit.Margin(time.Hour)
	row := func(units int64, window time.Duration) limitRow {
		return limitRow{Name: "l", State: "open", Units: units, Window: window}
	}
	for name, c := range map[string]struct {
		limit limitRow
		d     demand
		want  time.Duration // below 0: unknown
	}{
		"nothing waits":     {row(10, time.Minute), demand{}, 0},
		"there is room":     {row(10, time.Minute), demand{Waiting: 10}, 0},
		"three windows":     {row(10, time.Minute), demand{Waiting: 40}, 3 * time.Minute},
		"all is occupied":   {limitRow{State: "open", Units: 10, Window: time.Minute, Occupied: 10}, demand{Waiting: 40}, 4 * time.Minute},
		"the largest key's": {limitRow{State: "open", Units: 10, Window: time.Minute, PerKey: true}, demand{Waiting: 90, Key: &key, OfKey: 20}, time.Minute},
		"by cost":           {limitRow{State: "open", Units: 300, Window: time.Minute, CountCost: true}, demand{Waiting: 40, Cost: &cost}, 3 * time.Minute},
		"by cost, unknown":  {limitRow{State: "open", Units: 10, Window: time.Minute, CountCost: true}, demand{Waiting: 20}, time.Minute},
		"nothing yet free":  {full, demand{Waiting: 2, Now: &now}, next},
		"nor the next":      {full, demand{Waiting: 7, Now: &now}, time.Hour + next},
		"at once":           {row(4, 0), demand{Waiting: 40, Seconds: &seconds}, 20 * time.Second},
		"at once, unknown":  {row(4, 0), demand{Waiting: 40}, -1},
		"outside hours":     {row(10, time.Minute), demand{Waiting: 40, Now: &now, Queues: []string{"q"}, hours: map[string][]string{"q": {"13:00-14:00"}}}, -1},
		"closes before":     {row(10, time.Minute), demand{Waiting: 40, Now: &now, Queues: []string{"q"}, hours: map[string][]string{"q": {"11:00-12:02"}}}, -1},
		"closes later":      {row(10, time.Minute), demand{Waiting: 40, Now: &now, Queues: []string{"q"}, hours: map[string][]string{"q": {"11:00-12:03"}}}, 3 * time.Minute},
		"another has hours": {row(10, time.Minute), demand{Waiting: 40, Now: &now, Queues: []string{"q"}, hours: map[string][]string{"r": {"13:00-14:00"}}}, 3 * time.Minute},
		"paused":            {limitRow{State: "paused: x", Units: 10, Window: time.Minute}, demand{Waiting: 40}, -1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := c.limit.forecast(c.d)
			if c.want < 0 && f.Lasts != nil || c.want >= 0 && (f.Lasts == nil || *f.Lasts != c.want) {
				t.Errorf("lasts %v, want %v: %+v", f.Lasts, c.want, f)
			}
		})
	}
}

func TestForecastCommand(t *testing.T) {
	t.Parallel()
	w := published(t)
	w.exec(`INSERT INTO call_queue (queue, key) SELECT 'payments', CASE WHEN i <= 250 THEN 'big' ELSE 'small' END FROM generate_series(1, 300) i;
		UPDATE call_limits SET complete_since = now();
		INSERT INTO call_attempts (call_id, attempt, cost, claimed_at, started_at, finished_at, outcome, queue, task, key, charged)
		VALUES (1, 1, 2, now(), now(), now() + interval '3 s', 'done', 'payments', 'http', 'big', '[]')`)
	rows := decode[[]forecast](t, w.do("limits", "forecast", "-o", "json"))
	if len(rows) != 2 || *rows[0].Lasts != 3*time.Minute || rows[0].Waiting != 300 || // 300 calls of 3 s, 5 at once
		*rows[1].Lasts != 4*time.Hour || *rows[1].Key != "big" || rows[1].OfKey != 250 { // 500 units, 100 an hour
		t.Errorf("%+v", rows)
	}
	for args, says := range map[string]string{"": "250 (big)", "stripe": "~4h0m0s", "sockets": "~3m0s"} {
		if a := w.run(strings.Fields("limits forecast " + args)...); a.code != 0 || !strings.Contains(a.stdout, says) {
			t.Errorf("limits forecast %s: exit code %d, %s%s", args, a.code, a.stdout, a.stderr)
		}
	}
	if a := w.run("limits", "forecast", "nothing"); a.code != 4 || !strings.Contains(a.stderr, "no such limit: nothing") {
		t.Errorf("exit code %d, %s", a.code, a.stderr)
	}
}
