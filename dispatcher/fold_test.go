package dispatcher_test

import (
	"testing"
	"time"
)

// Many calls that were put off, each for a while of its own, are few rows of news after a tick; and due in time.
func TestTicksFoldNews(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(100)
	r := rules(sliding("api", 100, time.Hour))
	s.once(r)
	s.exec(`INSERT INTO call_queue (status) SELECT 'dispatched' FROM generate_series(1, 5000) i`)
	s.exec(`UPDATE call_queue SET status = 'new', run_at = now() + interval '1 hour' + id % 7 * 1000 * id * interval '1 ms' WHERE id > 10`)
	s.want(`SELECT count(*) = 4990 FROM call_news`)
	s.once(r)
	s.want(`SELECT count(*) < 100 AND sum(calls) = 4990 AND bool_and(again) FROM call_news`)
	s.exec(`UPDATE call_queue SET status = 'new', run_at = now() WHERE id <= 10`)
	s.once(r)
	s.want(`SELECT array_agg(call_id ORDER BY call_id) = '{1,2,3,4,5,6,7,8,9,10}' FROM call_open`)

	s.exec(`UPDATE call_queue SET run_at = run_at - interval '1 hour' WHERE id BETWEEN 11 AND 4990 AND id % 7 = 0`)
	s.once(r)
	s.want(`SELECT count(*) = 100 AND bool_and(call_id % 7 = 0 OR call_id <= 10) FROM call_open`)
	s.verify()
}
