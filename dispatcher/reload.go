package dispatcher

import (
	"context"
	"fmt"
	"time"
)

// Settings are what a running dispatcher can be given anew.
type Settings struct {
	Rules     Rules
	Schedule  Schedule
	Retention Retention
}

// check refuses what contradicts itself, and fills in what is derived and the defaults.
func (s *Settings) check() error {
	if err := s.Rules.check(); err != nil {
		return err
	}
	s.Schedule = s.Schedule.withDefaults()
	s.Retention = s.Retention.withDefaults()
	return s.Schedule.check()
}

// Reload has Run go on with s: all of it, from the moment at which its rules are applied, for every process.
// Until then the former settings hold, however long Postgres is away; of several the newest counts. An error says
// that s contradicts itself, and nothing is changed.
func (d *Dispatcher) Reload(s Settings) error {
	if err := s.check(); err != nil {
		return fmt.Errorf("dispatcher: %w", err)
	}
	d.next.Store(&s)
	select {
	case d.reload <- struct{}{}:
	default: // one is waiting already, and finds the newest
	}
	return nil
}

// reloadLoop takes what Reload leaves until ctx ends.
func (d *Dispatcher) reloadLoop(ctx context.Context, jobs *jobs) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.reload:
			d.takeNext(ctx, jobs)
		}
	}
}

// takeNext puts the newest settings in force, waiting for Postgres.
func (d *Dispatcher) takeNext(ctx context.Context, jobs *jobs) {
	var next *Settings
	for said := false; ; {
		if newer := d.next.Swap(nil); newer != nil {
			next = newer
		}
		if next == nil {
			return // the loop before has taken it
		}
		err := d.replace(ctx, *next)
		switch {
		case err == nil:
			if err := jobs.follow(next.Schedule); err != nil { // cannot happen: it was checked
				d.log.ErrorContext(ctx, "former schedules kept", "err", err)
			}
			d.wakeUp(true)
			d.log.InfoContext(ctx, "new settings in force",
				"queues", len(next.Rules.Queues), "limits", len(next.Rules.Limits))
			return
		case ctx.Err() != nil:
			return
		case !said:
			d.log.WarnContext(ctx, "new settings not yet in force: waiting for Postgres", "err", err)
			said = true
		}
		if !pause(ctx, time.Second) {
			return
		}
	}
}

// replace applies rules in place of what is in force, in one transaction: at no moment do both or neither
// hold. Whether a commit went through whose answer was lost does not matter: it is done again.
func (d *Dispatcher) replace(ctx context.Context, next Settings) error {
	bounded, cancel := context.WithTimeout(ctx, tickTimeout)
	defer cancel()
	if err := d.enter(bounded, next.Rules, true); err != nil {
		return err
	}
	d.settings.Store(&next)
	return nil
}
