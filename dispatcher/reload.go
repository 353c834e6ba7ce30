package dispatcher

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/callq/callq/internal/maintenance"
	"github.com/callq/callq/internal/policy"
)

// Settings are what a running dispatcher can be given anew.
type Settings struct {
	Policy    policy.Policy
	Schedule  Schedule
	Retention maintenance.Retention
}

// check refuses settings that contradict themselves, and fills in what is derived and the defaults.
func (s *Settings) check() error {
	if err := s.Policy.Check(); err != nil {
		return err
	}
	s.Schedule = s.Schedule.withDefaults()
	s.Retention = s.Retention.WithDefaults()
	return s.Schedule.check()
}

// settings passes reloaded settings from Reload to the loop that applies them.
type settings struct {
	current  atomic.Pointer[Settings] // in force; written by the start and by reloadLoop
	next     atomic.Pointer[Settings] // from Reload, not yet taken
	reloaded chan struct{}            // next holds something
}

func newSettings(s Settings) *settings {
	n := &settings{reloaded: make(chan struct{}, 1)}
	n.current.Store(&s)
	return n
}

// Reload replaces the settings of a running dispatcher, all of them, as soon as their policy is applied for every process. Until
// then the former settings hold, however long Postgres is away. If Reload is called several times, the newest counts. An
// error says that s contradicts itself, and that nothing changed.
func (d *Dispatcher) Reload(s Settings) error {
	if err := s.check(); err != nil {
		return fmt.Errorf("dispatcher: %w", err)
	}
	d.settings.next.Store(&s)
	select {
	case d.settings.reloaded <- struct{}{}:
	default: // one is waiting already, and finds the newest
	}
	return nil
}

func (d *Dispatcher) reloadLoop(ctx context.Context, jobs *jobs) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.settings.reloaded:
			d.applyNext(ctx, jobs)
		}
	}
}

// applyNext puts the newest settings in force, and waits for Postgres if need be.
func (d *Dispatcher) applyNext(ctx context.Context, jobs *jobs) {
	var next *Settings
	for logged := false; ; {
		if newer := d.settings.next.Swap(nil); newer != nil {
			next = newer
		}
		if next == nil {
			return // the loop before has taken it
		}
		err := d.replace(ctx, *next)
		switch {
		case err == nil:
			if err := jobs.follow(next.Schedule); err != nil { // cannot happen: it was checked
				d.cfg.Logger.ErrorContext(ctx, "former schedules kept", "err", err)
			}
			d.alarm.notify(true)
			d.cfg.Logger.InfoContext(ctx, "new settings in force",
				"queues", len(next.Policy.Queues), "limits", len(next.Policy.Limits))
			return
		case ctx.Err() != nil:
			return
		case !logged:
			d.cfg.Logger.WarnContext(ctx, "new settings not yet in force: waiting for Postgres", "err", err)
			logged = true
		}
		if !pause(ctx, time.Second) {
			return
		}
	}
}

// replace applies a policy in place of what is in force, in one transaction: at no moment do both or neither hold. If the
// answer to a commit is lost, it is done again, which is harmless.
func (d *Dispatcher) replace(ctx context.Context, next Settings) error {
	bounded, cancel := context.WithTimeout(ctx, tickTimeout)
	defer cancel()
	if err := d.join(bounded, next.Policy, true); err != nil {
		return err
	}
	d.settings.current.Store(&next)
	return nil
}
