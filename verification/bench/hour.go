package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	hourLines     = 60              // lines of a run
	hourLineLeast = 2 * time.Second // that one covers
	hourLinesMin  = 6               // below it, no third has a half
	hourEndWithin = 2 * time.Minute // for the calls that wait once the last is inserted
	hourAsk       = 200 * time.Millisecond
)

// forHour fills in what was not given.
func (s *sizes) forHour(flags *flag.FlagSet) {
	if !given(flags, "for") {
		s.paceFor = time.Hour
	}
	if !given(flags, "rates") {
		s.rates = rates{500}
	}
}

func (s sizes) checkHour() error {
	if len(s.rates) != 1 {
		return errors.New("-rates must be one rate with -hour")
	}
	if s.paceFor < hourLinesMin*hourLineLeast {
		return fmt.Errorf("-for must be at least %s with -hour", hourLinesMin*hourLineLeast)
	}
	return nil
}

// hourSettings are those of paced, but for checkpoints: an hour has them as often as Postgres comes with.
func hourSettings() map[string]string {
	settings := pacedSettings()
	settings["checkpoint_timeout"] = "5min"
	return settings
}

// hourLine is how long a line covers.
func (s sizes) hourLine() time.Duration { return max(s.paceFor/hourLines, hourLineLeast) }

// hourCalls are how many come.
func (s sizes) hourCalls() int { return int(float64(s.rates[0]) * s.paceFor.Seconds()) }

// hourEnd is what a run left.
type hourEnd struct {
	inserted   int
	answered   int64 // requests
	most       int   // requests that came in a second
	limit      int
	left       int     // calls that are not done
	millionMB  float64 // of a million attempts in the ledger
	outcomes   string  // how many attempts there ended how
	verified   string  // the last line of what verify says
	violations error   // what verify found, or why it could not
}

// err is what fails a run: no figure does.
func (e hourEnd) err() error {
	var errs []error
	if e.left > 0 {
		errs = append(errs, fmt.Errorf("%d calls are not done", e.left))
	}
	if e.answered < int64(e.inserted) {
		errs = append(errs, fmt.Errorf("the API answered %d requests of %d calls", e.answered, e.inserted))
	}
	if e.most > e.limit {
		errs = append(errs, fmt.Errorf("the API saw %d requests in a second under a limit of %d", e.most, e.limit))
	}
	return errors.Join(append(errs, e.violations)...)
}

// hour has calls come at an even rate, and notes at each line what callq takes. In the middle third a snapshot is held.
func (b *bench) hour(ctx context.Context) (samples []hourSample, end hourEnd, err error) {
	dir, err := os.MkdirTemp("", "callq-bench-")
	if err != nil {
		return nil, end, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	place := pacedPlace{callq: filepath.Join(dir, "callq"), dir: dir, redis: b.servers.redisURL(), rate: b.rates[0]}
	if err := b.buildCallq(ctx, place.callq); err != nil {
		return nil, end, err
	}
	seen := &windowCounter{window: time.Second}
	api, err := startAPI(ctx, seen.arrived)
	if err != nil {
		return nil, end, err
	}
	defer api.close()
	place.api = api.url
	end.limit = hourLimit(place.rate)
	err = b.servers.withDatabase(ctx, func(url string) error {
		place.postgres = url
		h, err := b.openHour(ctx, place)
		if err != nil {
			return err
		}
		defer h.close()
		begun := time.Now()
		if err := h.startAll(ctx); err != nil {
			return err
		}
		samples, err = b.hourThirds(ctx, h)
		if err == nil {
			err = b.sayTop(ctx, float64(b.hourCalls()))
		}
		if err == nil {
			end.left, err = h.awaitDone(ctx)
		}
		if err := errors.Join(err, h.running.stop()); err != nil {
			return err
		}
		end.inserted = b.hourCalls()
		end.answered, end.most = api.answered.Load(), seen.most()
		if err := h.conn.QueryRow(ctx, hourLedgerSQL).Scan(&end.millionMB, &end.outcomes); err != nil {
			return err
		}
		end.verified, end.violations = h.verify(ctx, time.Since(begun))
		return ctx.Err()
	})
	return samples, end, err
}

// hourLedgerSQL is of the ledger as it is, with the room of what was purged.
const hourLedgerSQL = `
SELECT coalesce(pg_total_relation_size('public.call_attempts') / nullif(sum(n), 0)::float, 0),
    coalesce(string_agg(n || ' ' || outcome, ', ' ORDER BY n DESC), 'none')
FROM (SELECT outcome, count(*) AS n FROM public.call_attempts GROUP BY outcome) o`

// hourThirds inserts for as long as was asked for, and takes a sample at the end of each line.
func (b *bench) hourThirds(ctx context.Context, h *hourCallq) (samples []hourSample, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	locks, err := watchLocks(ctx, b.servers.postgres.URL("postgres"))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, locks.stop()) }()
	if err := b.countStatements(ctx); err != nil {
		return nil, err
	}
	sampler := &hourSampler{bench: b, callq: h, locks: locks, begun: time.Now()}
	inserted := make(chan error, 1)
	go func() { inserted <- insertPaced(ctx, h.pacedCallq, h.place.rate, b.paceFor) }()

	var held *pgx.Conn
	release := func() error {
		if held == nil {
			return nil
		}
		err := held.Close(context.WithoutCancel(ctx))
		held = nil
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	fmt.Fprintln(b.say, hourHeading())
	tick := time.NewTicker(b.hourLine())
	defer tick.Stop()
	lines := int(b.paceFor / b.hourLine())
	for n := 0; n < lines; {
		select {
		case <-tick.C:
		case err := <-inserted:
			if err != nil {
				return samples, fmt.Errorf("insert: %w", err)
			}
			inserted <- nil // for who waits for it below
			<-tick.C
		case <-ctx.Done():
			return samples, context.Cause(ctx)
		}
		sample, err := sampler.take(ctx, hourPhase(n, lines))
		if err != nil {
			return samples, err
		}
		samples = append(samples, sample)
		fmt.Fprintln(b.say, sample.line())
		n++
		switch before, next := hourPhase(n-1, lines), hourPhase(n, lines); {
		case before != snapshotHeld && next == snapshotHeld:
			if held, err = holdSnapshot(ctx, h.place.postgres); err != nil {
				return samples, err
			}
		case before == snapshotHeld && next != snapshotHeld:
			if err := release(); err != nil {
				return samples, err
			}
		}
	}
	select {
	case err := <-inserted:
		return samples, err
	case <-ctx.Done():
		return samples, context.Cause(ctx)
	}
}

// hourPhase is that of a line, from 0: in the middle third the snapshot is held.
func hourPhase(n, lines int) string {
	switch 3 * n / lines {
	case 0:
		return snapshotNotYet
	case 1:
		return snapshotHeld
	}
	return snapshotEnded
}

// holdSnapshot opens a transaction from whose snapshot on no vacuum removes a row.
func holdSnapshot(ctx context.Context, url string) (*pgx.Conn, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, err
	}
	for _, sql := range []string{
		"SET idle_in_transaction_session_timeout = 0", "BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT count(*) FROM callq.call_limits",
	} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return nil, errors.Join(fmt.Errorf("hold a snapshot: %w", err), conn.Close(ctx))
		}
	}
	return conn, nil
}
