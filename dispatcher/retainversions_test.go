package dispatcher_test

import (
	"testing"
	"time"

	"github.com/callq/callq/internal/maintenance"
)

// Versions of limits go with the ledger: those stay that an attempt was claimed under, that came later, or that
// a window may need; and the last of each limit always. verify knows what was in force when, before and after.
//
//callq:guarantee 6 13
func TestRetentionPrunesVersions(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(100)
	r := rules(sliding("api", 5, time.Hour), sliding("other", 5, time.Hour))
	s.calls("default", 1)
	s.once(r)
	s.start(time.Hour)
	s.finish()
	for _, units := range []int64{6, 7, 8} {
		s.set(units, time.Hour)
	}
	s.want(`SELECT count(*) = 5 FROM call_limit_versions`)
	// Version n of api is from so many days ago; the call was made under the second.
	s.exec(`UPDATE call_limit_versions SET effective_from = now() - (50 - 10 * version) * interval '1 day'`)
	s.exec(`UPDATE call_limit_versions SET effective_from = now() - interval '40 days' WHERE limit_name = 'other'`)
	s.exec(`DELETE FROM call_audit`) // of then it says nothing
	s.exec(`DELETE FROM call_usage`)
	const ago = ` - interval '25 days'`
	s.exec(`UPDATE call_attempts SET claimed_at = claimed_at` + ago + `, started_at = started_at` + ago + `, arrived_by = arrived_by` + ago + `, finished_at = finished_at` + ago + `,
		charged = (SELECT jsonb_agg(jsonb_set(c, '{until}', to_jsonb((c->>'until')::timestamptz` + ago + `))) FROM jsonb_array_elements(charged) c)`)
	s.exec(`UPDATE call_queue SET dispatched_at = dispatched_at` + ago + `, finished_at = finished_at` + ago)
	retain := func(done time.Duration, want string) {
		t.Helper()
		if _, err := maintenance.Purge(t.Context(), s.pool, maintenance.Retention{Done: done}, nil); err != nil {
			t.Fatal(err)
		}
		s.want(`SELECT string_agg(limit_name || version, ' ' ORDER BY limit_name, version) = $1 FROM call_limit_versions`, want)
		s.verify()
	}
	s.verify()
	retain(1000*24*time.Hour, "api2 api3 api4 other1")
	retain(time.Hour, "api4 other1")
	s.set(9, time.Hour) // numbers go on
	retain(time.Hour, "api4 api5 other1")
}
