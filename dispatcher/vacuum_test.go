package dispatcher_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/callq/callq/internal/maintenance"
	"github.com/callq/callq/internal/pgtest"
)

const vacuumedSQL = `SELECT vacuum_count = $1 FROM pg_stat_user_tables WHERE relname = 'call_usage'`

// deadUsage leaves call_usage in need of a vacuum.
func (s *system) deadUsage() {
	s.t.Helper()
	s.exec(`ALTER TABLE callq.call_usage SET (autovacuum_enabled = off)`)
	s.exec(`INSERT INTO callq.call_usage SELECT 'api', '', now() + i * interval '1 ms', 1, 1 FROM generate_series(1, 5000) i`)
	s.exec(`DELETE FROM callq.call_usage`)
	s.eventually(`SELECT n_dead_tup = 5000 FROM pg_stat_user_tables WHERE relname = 'call_usage'`)
}

// Tables of which much is dead are vacuumed, and no others; once, whatever a snapshot keeps there.
func TestVacuumNeeded(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.pool = s.owner // before Postgres 17 nobody else may
	s.deadUsage()
	for range 2 {
		if err := maintenance.VacuumNeeded(t.Context(), s.pool); err != nil {
			t.Fatal(err)
		}
		s.eventually(vacuumedSQL, 1)
	}
	s.want(`SELECT sum(vacuum_count) = 1 AND sum(analyze_count) = 0 FROM pg_stat_user_tables WHERE relname LIKE 'call_%'`)
}

// Before Postgres 17 only the owner may vacuum a table, and anyone else gets no more than a warning for
// it: a daemon of another role leaves it alone, and who asks for it is told.
func TestVacuumOfARoleThatMayNot(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.deadUsage()
	config, err := pgxpool.ParseConfig(pgtest.NewLogins(t, s.pool.Config().ConnString()).Daemon)
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.OnNotice = func(_ *pgconn.PgConn, notice *pgconn.Notice) {
		t.Errorf("Postgres warned: %s", notice.Message)
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if err := maintenance.VacuumNeeded(t.Context(), pool); err != nil {
		t.Error(err)
	}
	err = maintenance.Vacuum(t.Context(), pool)
	if one[int](s, `SELECT current_setting('server_version_num')::integer`) >= 170000 {
		if err != nil {
			t.Error(err)
		}
		s.eventually(vacuumedSQL, 2)
		return
	}
	const forbidden = "may not vacuum call_attempts, callq.call_flows, callq.call_inbox, callq.call_open, call_queue, callq.call_segments, callq.call_usage"
	if err == nil || !strings.Contains(err.Error(), forbidden) {
		t.Errorf("got %v, want that it %s", err, forbidden)
	}
	s.want(vacuumedSQL, 0)
}
