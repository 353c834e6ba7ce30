package dispatcher_test

import (
	"testing"
	"time"
)

// Tables of which much is dead are vacuumed, and no others; once, whatever a snapshot keeps there.
func TestVacuumNeeded(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.exec(`ALTER TABLE call_usage SET (autovacuum_enabled = off)`)
	s.exec(`INSERT INTO call_usage SELECT 'api', '', now() + i * interval '1 ms', 1, 1 FROM generate_series(1, 5000) i`)
	s.exec(`DELETE FROM call_usage`)
	const stats = `SELECT vacuum_count = $1 FROM pg_stat_user_tables WHERE relname = 'call_usage'`
	s.eventually(10*time.Second, `SELECT n_dead_tup = 5000 FROM pg_stat_user_tables WHERE relname = 'call_usage'`)
	d := s.dispatcher(rules())
	for range 2 {
		if err := d.VacuumNeeded(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.eventually(10*time.Second, stats, 1)
	}
	s.want(`SELECT sum(vacuum_count) = 1 FROM pg_stat_user_tables WHERE relname LIKE 'call_%'`)
}
