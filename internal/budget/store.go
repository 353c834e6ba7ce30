package budget

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/callq/callq/internal/schema"
	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
)

// Store has the budgets that are in force in Postgres, and asks Redis about them, which may be away.
type Store struct {
	DB    schema.DB
	Redis redis.UniversalClient
	Log   *slog.Logger
	// Within is how long Redis may take: then it counts as away. (A client without ContextTimeoutEnabled has timeouts of its own.)
	Within time.Duration
	Again  time.Duration // when a Redis that was away is asked again

	effective atomic.Pointer[map[string]Effective] // as they were read last; nil: they were not
	// away has, by budget, when to ask again a Redis that does not answer. A cluster may have lost one budget's node alone.
	away sync.Map
}

// Effective is a budget in force.
type Effective struct {
	Rule
	Open     bool     // a draw goes through while Redis is away
	NeededBy []string // queues whose claims promise units of it
}

// Rule is a budget in force. One that is not known is read at once.
func (s *Store) Rule(ctx context.Context, name string) (e Effective, err error) {
	for range 2 {
		if all := s.effective.Load(); all != nil {
			if e, known := (*all)[name]; known {
				return e, nil
			}
		}
		if err := s.Read(ctx); err != nil {
			return e, err
		}
	}
	return e, &LastingError{
		"add it under budgets in the configuration of serve or dispatch, and reload (SIGHUP) or restart them",
		errors.New("no such budget is in force"),
	}
}

const readWithin = 5 * time.Second

// Read reads what is in force. While Postgres is away, what was read last holds.
func (s *Store) Read(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readWithin)
	defer cancel()
	rows, _ := s.DB.Query(ctx, effectiveSQL) // ForEachRow returns its error
	all := map[string]Effective{}
	var name string
	var e Effective
	_, err := pgx.ForEachRow(rows, []any{&name, &e.Rate.Units, &e.Rate.Window, &e.Burst, &e.Shape, &e.Open, &e.NeededBy}, func() error {
		read := e
		e.Shape, e.NeededBy = Shape{}, nil // the next row is read into it
		if read.Check() == nil {           // else it cannot be drawn on
			all[name] = read
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read the budgets: %w", err)
	}
	s.effective.Store(&all)
	return nil
}

const effectiveSQL = `
SELECT name, rate, window_size, burst, shape, on_outage = 'open',
    ARRAY(SELECT q.name FROM callq.call_queues q WHERE q.needs ? b.name)
FROM callq.call_budgets b`

// NeededBy yields the budgets whose units a queue's claims promise.
func (s *Store) NeededBy(queue string) iter.Seq2[string, Rule] {
	return func(yield func(string, Rule) bool) {
		all := s.effective.Load()
		if all == nil {
			return
		}
		for name, e := range *all {
			if slices.Contains(e.NeededBy, queue) && !yield(name, e.Rule) {
				return
			}
		}
	}
}

// Ask asks Redis about budgets, and logs when it ceases to answer. While it does not, one question about a budget is put to it
// from time to time: the others need not wait for an answer that does not come, and a frozen Redis does later all that it was asked.
// A LastingError is an answer.
func (s *Store) Ask(ctx context.Context, units []Units, ask func(context.Context) error) error {
	for _, u := range units {
		if again, away := s.away.Load(u.Name); away {
			if time.Now().Before(again.(time.Time)) || !s.away.CompareAndSwap(u.Name, again, time.Now().Add(s.Within+s.Again)) {
				return errors.New("no answer from Redis, which is asked again soon")
			}
		}
	}
	bounded, cancel := context.WithTimeout(ctx, s.Within)
	defer cancel()
	err := judged(ask(bounded))
	for _, u := range units {
		if err == nil || Lasting(err) {
			s.away.Delete(u.Name)
		} else if ctx.Err() == nil { // else who asked ended, and another asks in Within
			if _, away := s.away.Swap(u.Name, time.Now().Add(s.Again)); !away {
				s.Log.WarnContext(ctx, "Redis does not answer draws: they wait, or go through with on_outage open", "budget", u.Name, "err", err)
			}
		}
	}
	return err
}
