package dispatcher

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/robfig/cron/v3"

	"github.com/callq/callq/internal/ledger/ledgertest"
	"github.com/callq/callq/internal/pgtest"
)

// What cron cannot run is an error, and no panic.
func TestScheduleIsChecked(t *testing.T) {
	t.Parallel()
	for _, spec := range []string{"TZ=UTC", "CRON_TZ=Europe/Berlin", "TZ=", "every day", "61 * * * *", "@every x"} {
		s := Schedule{Retention: spec}
		if err := s.check(); err == nil {
			t.Errorf("%q is not refused", spec)
		}
	}
	for _, spec := range []string{"", "TZ=Europe/Berlin 0 4 * * *", "@daily"} {
		s := Schedule{Retention: spec}
		if err := s.check(); err != nil {
			t.Errorf("%q: %v", spec, err)
		}
	}
	for _, s := range []Schedule{{Verify: "of"}, {Dispatch: off}, {Retention: off, Verify: "@daily"}, {Vacuum: off}} {
		if err := s.check(); err == nil {
			t.Errorf("%+v is not refused", s)
		}
	}
	s := Schedule{Verify: "@daily"}
	if err := s.check(); err != nil {
		t.Error(err)
	}
}

// A job whose schedule a reload changed does not run beside its run by the former schedule.
func TestJobsRunAloneAcrossReloads(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	client := redis.NewClient(&redis.Options{}) // nothing asks it
	t.Cleanup(func() { _ = client.Close() })
	d, err := New(Config{Pool: pool, Redis: client})
	if err != nil {
		t.Fatal(err)
	}
	j := d.newJobs(t.Context())
	retention := func(every time.Duration) (job cron.Job) {
		j.follow(Schedule{Retention: "@every " + every.String()})
		for _, entry := range j.cron.Entries() {
			if entry.Schedule == (cron.ConstantDelaySchedule{Delay: every}) {
				job = entry.WrappedJob
			}
		}
		return job
	}
	former, next := retention(2*time.Hour), retention(3*time.Hour)

	held, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := held.Exec(t.Context(), `LOCK public.call_queue`); err != nil {
		t.Fatal(err)
	}
	formerEnds, nextEnds := make(chan struct{}), make(chan struct{})
	go func() { defer close(formerEnds); former.Run() }()
	ledgertest.AwaitLocks(t, pool, 1) // it waits for the table
	go func() { defer close(nextEnds); next.Run() }()
	select {
	case <-nextEnds:
	case <-time.After(time.Minute):
		t.Error("it ran beside the other")
	}
	if err := held.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-formerEnds
	<-nextEnds
}
