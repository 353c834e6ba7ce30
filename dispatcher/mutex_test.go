package dispatcher_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/callq/callq/internal/pgtest"
)

// stranger is a session of a login that may do nothing to callq's tables but read them, and that holds the advisory
// locks which callq takes, or took.
func (s *system) stranger() {
	s.t.Helper()
	conn, err := pgx.Connect(s.t.Context(), pgtest.NewLogins(s.t, s.owner.Config().ConnString()).Viewer)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	for _, name := range []string{"callq room", "callq publish", "callq vacuum"} {
		if _, err := conn.Exec(s.t.Context(), `SELECT pg_advisory_lock(hashtext($1))`, name); err != nil {
			s.t.Fatal(err)
		}
	}
}

// Whatever lock a login holds that is none of callq's daemons, processes publish, claim and vacuum.
func TestStrangerHoldsNothingUp(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(10)
	s.calls("default", 2)
	s.stranger()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	d := s.another(hourly(10))
	if err := d.Join(ctx); err != nil {
		t.Fatal(err)
	}
	if err := d.Tick(ctx); err != nil {
		t.Error(err)
	}
	s.want(`SELECT count(*) = 2 FROM call_open`)
	s.calls("default", 1)
	if err := d.Look(ctx); err != nil {
		t.Error(err)
	}
	s.want(`SELECT count(*) = 3 FROM call_open`)

	s.deadUsage()
	s.pool = s.owner
	if err := s.dispatcher(hourly(10)).VacuumNeeded(ctx); err != nil {
		t.Error(err)
	}
	s.eventually(vacuumedSQL, 1)
}

// A process of the release before, which knows the advisory lock alone, and this one's publishers wait for each other.
func TestPublisherOfTheReleaseBefore(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	former, err := s.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer former.Rollback(t.Context())
	if _, err := former.Exec(t.Context(), `SELECT pg_advisory_xact_lock(hashtext('callq publish'))`); err != nil {
		t.Fatal(err)
	}
	joined := make(chan error, 1)
	d := s.another(hourly(10))
	go func() { joined <- d.Join(context.Background()) }()
	s.eventually(waitingSQL, 1)
	s.want(`SELECT count(*) = 0 FROM call_dispatchers`)
	if err := former.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-joined; err != nil {
		t.Error(err)
	}
	s.want(`SELECT count(*) = 1 FROM call_dispatchers`)
}
