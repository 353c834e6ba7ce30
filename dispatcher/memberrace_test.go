package dispatcher_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/policy"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Eight processes come and go at once, with claims in between: none waits for ever, and what holds is all of what one
// of them has applied, the last.
//
//callq:guarantee 7 13
func TestPublishersRace(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(1000)
	s.calls("default", 500)
	s.calls("other", 500)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	processes := make([]*dispatcher.Dispatcher, 8)
	for i := range processes {
		r := policy.Policy{
			Limits: []policy.Limit{sliding("api", int64(10+i), time.Hour), sliding("own", 20, time.Hour), sliding(fmt.Sprint("of", i), 100, time.Hour)},
			Queues: []policy.Queue{queue("default", "api", fmt.Sprint("of", i)), queue("other", "own", "api")},
		}
		if i%2 == 1 {
			slices.Reverse(r.Queues)
			slices.Reverse(r.Limits)
		}
		processes[i] = s.another(r)
	}
	gate, ended := make(chan struct{}), sync.WaitGroup{}
	for i, d := range processes {
		ended.Go(func() {
			<-gate
			for round := range 5 {
				if err := d.Join(ctx); err != nil {
					t.Error(err)
				}
				for range 2 {
					if err := d.Tick(ctx); err != nil {
						t.Error(err)
					}
				}
				d.Leave(ctx)
				s.publish(hourly(int64(20 + 8*round + i)))
			}
		})
	}
	close(gate)
	ended.Wait()
	s.want(`SELECT count(*) = 48 AND count(DISTINCT number) = 48 FROM callq.call_policies`)
	last := s.another(hourly(5))
	if err := last.Join(ctx); err != nil {
		t.Fatal(err)
	}
	s.others(0, last)
	s.want(`SELECT string_agg(concat(name, limits), ' ') = 'default{api}' FROM callq.call_queues`)
	s.rate(5, "of the last")
	s.verify()
}

// A process that is frozen while it publishes holds what all others wait for: Postgres ends that.
//
//callq:guarantee 13
func TestPublisherFrozen(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.alive(100)
	s.calls("default", 50)
	live := s.joined(hourly(10))
	pool := s.poolWith(func(c *pgxpool.Config) { // `limits set` has a connection without the dispatchers' settings
		delete(c.ConnConfig.RuntimeParams, "idle_in_transaction_session_timeout")
	})
	frozen, thaw, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() { ended <- applyFrozen(pool, hourly(6), frozen, thaw) }()
	<-frozen
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := s.another(hourly(8)).Join(ctx); err != nil {
		close(thaw)
		t.Fatal(err, <-ended)
	}
	s.rate(8, "without the frozen")
	s.tick(live)
	s.want(`SELECT count(*) = 8 FROM callq.call_open`)
	close(thaw)
	if err := <-ended; err == nil {
		t.Error("it was thawed, and published all the same")
	}
	s.rate(8, "after it was thawed")
}

// What another published meanwhile is seen, whatever isolation the server gives by default.
func TestPublishersWhereRepeatableReadIsDefault(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.joined(hourly(10))
	first := s.poolWith(parameter("application_name", "first"))
	second := s.poolWith(parameter("default_transaction_isolation", "repeatable read"))
	frozen, thaw, ended := make(chan struct{}), make(chan struct{}), make(chan error, 2)
	go func() { ended <- applyFrozen(first, hourly(6), frozen, thaw) }()
	<-frozen
	go func() {
		_, err := policy.Apply(context.Background(), second, hourly(8), "tester")
		ended <- err
	}()
	s.eventually(waitingSQL, 1)
	close(thaw)
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	s.rate(8, "after both")
}

// applyFrozen applies a policy, and is frozen before the commit until thaw is closed.
func applyFrozen(pool *pgxpool.Pool, p policy.Policy, frozen chan<- struct{}, thaw <-chan struct{}) error {
	config := pool.Config().Copy()
	config.ConnConfig.Tracer = freezer{"INSERT INTO callq.call_policies", frozen, thaw}
	own, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return err
	}
	defer own.Close()
	_, err = policy.Apply(context.Background(), own, p, "frozen")
	return err
}

// freezer freezes a process after a statement.
type freezer struct {
	sql    string
	frozen chan<- struct{}
	thaw   <-chan struct{}
}

type tracedKey struct{}

func (f freezer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	return context.WithValue(ctx, tracedKey{}, data.SQL)
}

func (f freezer) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	if sql, _ := ctx.Value(tracedKey{}).(string); strings.Contains(sql, f.sql) {
		close(f.frozen)
		<-f.thaw
	}
}
