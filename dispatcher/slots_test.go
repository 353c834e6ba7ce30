package dispatcher_test

import (
	"testing"
	"time"
)

// Slow calls take all slots, and more of them wait. A call of another queue or key that falls due then gets the next slot that
// comes free: what is handed over cannot be overtaken, so nothing else may be handed over before.
//
//callq:guarantee 10
func TestNextSlotIsForAnother(t *testing.T) {
	t.Parallel()
	for name, other := range map[string]string{
		"another queue": `INSERT INTO call_queue (queue) VALUES ('other') RETURNING id`,
		"another key":   `INSERT INTO call_queue (queue, key) VALUES ('slow', 'other') RETURNING id`,
		"another task":  `INSERT INTO call_queue (queue, task) VALUES ('other', 'mail') RETURNING id`,
	} {
		parallel(t, name, func(t *testing.T, s *system) {
			const slots = 4
			r := rules()
			r.Queues = append(r.Queues, queue("slow"), queue("other"))
			s.publish(r)
			s.aliveIn("w", slots, "http", "mail")
			s.exec(`INSERT INTO call_queue (queue, key) SELECT 'slow', 'k' FROM generate_series(1, 40)`)
			d := s.dispatcher(r)
			s.tick(d)
			s.start(time.Hour)
			for range 3 {
				s.tick(d)
			}
			s.want(`SELECT count(*) = $1 AND bool_and(started_at IS NOT NULL) FROM callq.call_open`, slots)
			id := one[int64](s, other)
			s.tick(d)
			s.finish(one[int64](s, `SELECT min(call_id) FROM callq.call_open`))
			s.tick(d)
			s.want(`SELECT array_agg(call_id) = ARRAY[$1::bigint] FROM callq.call_open WHERE started_at IS NULL`, id)
			s.verify()
		})
	}
}
