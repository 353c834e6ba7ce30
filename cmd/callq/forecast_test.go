package main

import (
	"strings"
	"testing"
	"time"

	"github.com/callq/callq/internal/admin"
)

func TestForecastCommand(t *testing.T) {
	t.Parallel()
	w := published(t)
	w.exec(`INSERT INTO call_queue (queue, key) SELECT 'payments', CASE WHEN i <= 250 THEN 'big' ELSE 'small' END FROM generate_series(1, 300) i;
		UPDATE call_limits SET complete_since = now();
		INSERT INTO call_attempts (call_id, attempt, cost, claimed_at, started_at, finished_at, outcome, queue, task, key, charged)
		VALUES (1, 1, 2, now(), now(), now() + interval '3 s', 'done', 'payments', 'http', 'big', '[]')`)
	rows := decode[[]admin.Forecast](t, w.do("limits", "forecast", "-o", "json"))
	if len(rows) != 2 || *rows[0].Lasts != 3*time.Minute || rows[0].Waiting != 300 || // 300 calls of 3 s, 5 at once
		*rows[1].Lasts != 4*time.Hour || *rows[1].Key != "big" || rows[1].OfKey != 250 { // 500 units, 100 an hour
		t.Errorf("%+v", rows)
	}
	for args, says := range map[string]string{"": "250 (big)", "stripe": "~4h0m0s", "sockets": "~3m0s"} {
		if a := w.run(strings.Fields("limits forecast " + args)...); a.code != 0 || !strings.Contains(a.stdout, says) {
			t.Errorf("limits forecast %s: exit code %d, %s%s", args, a.code, a.stdout, a.stderr)
		}
	}
	w.refuses(4, "no such limit: nothing", "limits", "forecast", "nothing")
}
