package dispatcher_test

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/backlog"
	"github.com/callq/callq/internal/handoff"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/policy"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

func (s *system) exec(sql string, args ...any) {
	s.t.Helper()
	if _, err := s.owner.Exec(context.Background(), sql, args...); err != nil {
		s.t.Fatalf("%v\n%s", err, sql)
	}
}

// hold runs statements in a transaction that stays open until release, or the test's end.
func (s *system) hold(statements ...string) pgx.Tx {
	s.t.Helper()
	tx, err := s.owner.Begin(context.Background())
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	for _, sql := range statements {
		s.within(tx, sql)
	}
	return tx
}

func (s *system) within(tx pgx.Tx, sql string) {
	s.t.Helper()
	if _, err := tx.Exec(context.Background(), sql); err != nil {
		s.t.Fatal(err)
	}
}

func (s *system) release(tx pgx.Tx) {
	s.t.Helper()
	if err := tx.Commit(context.Background()); err != nil {
		s.t.Fatal(err)
	}
}

// want fails the test unless the query answers true.
func (s *system) want(sql string, args ...any) {
	s.t.Helper()
	if ok := one[*bool](s, sql, args...); ok == nil || !*ok {
		s.t.Errorf("not so: %s", sql)
	}
}

// one is the single value that a query answers.
func one[T any](s *system, sql string, args ...any) T {
	s.t.Helper()
	var v T
	if err := s.owner.QueryRow(context.Background(), sql, args...).Scan(&v); err != nil {
		s.t.Fatalf("%v\n%s", err, sql)
	}
	return v
}

// once runs one whole tick of a new dispatcher, under these rules. It has the test's connections, whose statements are prepared:
// Once, which opens its own, takes several times as long.
func (s *system) once(r policy.Policy) {
	s.t.Helper()
	s.publish(r)
	s.tick(s.dispatcher(r))
}

// publish publishes rules, and opens nothing.
func (s *system) publish(r policy.Policy) []string {
	s.t.Helper()
	var changes []string
	if err := dispatcher.Unfrozen(func() (err error) {
		if _, err = policy.EnterEpoch(context.Background(), s.pool, policy.Strict, 0); err == nil { // as Run does
			changes, err = policy.Apply(context.Background(), s.pool, r, "publisher")
		}
		return err
	}); err != nil {
		s.t.Fatal(err)
	}
	return changes
}

// turn has a dispatcher do once what is due, however slow this machine is.
func (s *system) turn(d *dispatcher.Dispatcher) {
	s.t.Helper()
	if err := d.OnceUnfrozen(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
}

// another is a process of its own: a dispatcher with its own connections.
func (s *system) another(r policy.Policy) *dispatcher.Dispatcher {
	s.t.Helper()
	pool := s.poolWith(func(c *pgxpool.Config) { c.MaxConns = 3 })
	return s.dispatcher(r, func(c *dispatcher.Config) { c.Pool = pool })
}

// poolWith is another pool, whose configuration is changed.
func (s *system) poolWith(change func(*pgxpool.Config)) *pgxpool.Pool {
	s.t.Helper()
	config := s.pool.Config().Copy()
	change(config)
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(pool.Close)
	return pool
}

// parameter sets a parameter of the sessions.
func parameter(name, value string) func(*pgxpool.Config) {
	return func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams[name] = value }
}

// calls inserts n calls of a queue, in the order of their ids.
func (s *system) calls(queue string, n int) {
	s.t.Helper()
	s.exec(`INSERT INTO call_queue (queue) SELECT $1 FROM generate_series(1, $2)`, queue, n)
}

// alive says that a worker of pool http lives, with so many slots; nothing runs there.
func (s *system) alive(slots int) { s.t.Helper(); s.aliveIn("http", slots, "http") }

func (s *system) aliveIn(pool string, slots int, tasks ...string) {
	s.t.Helper()
	s.exec(`INSERT INTO callq.call_workers (id, pool, tasks, labels, slots, started_at, heartbeat_at)
		VALUES ($1, $1, $2, '{}', $3, clock_timestamp(), clock_timestamp() + interval '1 hour')`, pool, tasks, slots)
}

// opens opens attempts of calls, of no limit.
func (s *system) opens(ids string) { s.t.Helper(); s.exec(opensSQL(ids)) }

func opensSQL(ids string) string {
	return `INSERT INTO callq.call_open (call_id, attempt, message_no, batch, cost, claimed_at, handed_at, start_by, epoch, pool, queue, task, key, limits, keys, costs)
		SELECT id, 9, 0, 1, 1, now(), now(), now() + interval '1 h', callq.epoch(), 'http', 'default', 'http', '', '{}', '{}', '{}' FROM (` + ids + `) i`
}

// start starts open attempts as a worker would: of these calls, or all that have not started.
func (s *system) start(timeout time.Duration, ids ...int64) {
	s.t.Helper()
	for _, r := range s.requests(ids, timeout) {
		answers, err := ledger.Start(context.Background(), s.pool, "w", []ledger.StartRequest{r})
		if err != nil {
			s.t.Fatal(err)
		}
		if answers[0].Refused != nil {
			s.t.Fatalf("call %d was not started: %+v", r.CallID, answers[0])
		}
	}
}

func (s *system) requests(ids []int64, timeout time.Duration) []ledger.StartRequest {
	s.t.Helper()
	rows, err := s.pool.Query(context.Background(), `SELECT call_id, attempt FROM callq.call_open
		WHERE started_at IS NULL AND (cardinality($1::bigint[]) = 0 OR call_id = ANY($1)) ORDER BY call_id`, append([]int64{}, ids...))
	if err != nil {
		s.t.Fatal(err)
	}
	requests, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (ledger.StartRequest, error) {
		r := ledger.StartRequest{Token: rand.Int64() | 1, Timeout: timeout}
		return r, row.Scan(&r.CallID, &r.Attempt)
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return requests
}

// work starts and ends attempts, as a worker that does nothing in between, until stop is closed.
func (s *system) work(stop <-chan struct{}) {
	ctx := context.Background()
	for {
		select {
		case <-stop:
			return
		default:
		}
		requests := s.requests(nil, time.Minute)
		rand.Shuffle(len(requests), func(i, j int) { requests[i], requests[j] = requests[j], requests[i] })
		asked := time.Now()
		requests = requests[:min(len(requests), 4)]
		answers, err := ledger.Start(ctx, s.pool, "w", requests)
		if ledger.Busy(err) {
			continue
		}
		if err != nil {
			s.t.Error(err)
			return
		}
		s.eventually(`SELECT count(*) = 0 FROM callq.call_open WHERE started_at > clock_timestamp()`)
		var closings []ledger.Closing
		for _, a := range answers {
			took := time.Since(asked) - a.Wait
			i := slices.IndexFunc(requests, func(r ledger.StartRequest) bool { return r.Token == a.Token })
			closings = append(closings, ledger.Closing{
				CallID: a.CallID, Attempt: requests[i].Attempt, Token: a.Token, Outcome: callqueue.OutcomeDone,
				Status: callqueue.StatusDone, Arrival: &limit.Arrival{By: &took, EndBy: &took}, Requests: new(int16(1)),
			})
		}
		_, err = new(ledger.Closer).Close(ctx, s.pool, closings)
		for ledger.Busy(err) {
			_, err = new(ledger.Closer).Close(ctx, s.pool, closings)
		}
		if err != nil {
			s.t.Error(err)
			return
		}
	}
}

// broker is what the dispatchers hand over to.
func (s *system) broker() *handoff.Broker {
	s.t.Helper()
	broker := handoff.New(s.redis, s.pool, slog.New(slog.DiscardHandler))
	if err := broker.Open(context.Background()); err != nil {
		s.t.Fatal(err)
	}
	return broker
}

// pending are the ids of the messages of a pool that wait in Redis.
func (s *system) pending(pool string) []string {
	s.t.Helper()
	ids, err := s.broker().Pending(context.Background(), pool)
	if err != nil {
		s.t.Fatal(err)
	}
	return ids
}

func queue(name string, limits ...string) policy.Queue {
	return policy.Queue{
		Name: name, Limits: limits, MaxAttempts: 3, BackoffMin: 50 * time.Millisecond, BackoffMax: time.Second,
		Timeout: 5 * time.Second, OnLost: "retry",
	}
}

// used is what limit api has given out: open attempts and usage.
func (s *system) used() int64 {
	s.t.Helper()
	return one[int64](s, `SELECT (SELECT count(*) FROM callq.call_open WHERE limits @> '{api}')
		+ (SELECT coalesce(sum(used), 0) FROM callq.call_usage WHERE limit_name = 'api')`)
}

func parallel(t *testing.T, name string, run func(t *testing.T, s *system)) {
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		run(t, newSystem(t))
	})
}

func sorted(list []string) []string { return slices.Sorted(slices.Values(list)) }

// finish ends what has started, of these calls or all, as done and answered just now.
func (s *system) finish(ids ...int64) { s.t.Helper(); s.settle(nil, ids...) }

// settle does, and says what each cost.
func (s *system) settle(settled *int64, ids ...int64) {
	s.t.Helper()
	rows, err := s.pool.Query(context.Background(), `SELECT call_id, attempt, token, clock_timestamp() - started_at FROM callq.call_open
		WHERE started_at IS NOT NULL AND (cardinality($1::bigint[]) = 0 OR call_id = ANY($1))`, append([]int64{}, ids...))
	if err != nil {
		s.t.Fatal(err)
	}
	closings, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (ledger.Closing, error) {
		c := ledger.Closing{Outcome: callqueue.OutcomeDone, Status: callqueue.StatusDone, Settled: settled, Requests: new(int16(1))}
		var took time.Duration
		err := row.Scan(&c.CallID, &c.Attempt, &c.Token, &took)
		c.Arrival = &limit.Arrival{By: &took, Written: took, EndBy: &took}
		return c, err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	if _, err := new(ledger.Closer).Close(context.Background(), s.pool, closings); err != nil {
		s.t.Fatal(err)
	}
}

// waitingSQL says whether so many sessions wait for a lock.
const waitingSQL = `SELECT count(*) = $1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`

// atOnce lets all dispatchers run together, from behind a gate.
func atOnce(t *testing.T, dispatchers []*dispatcher.Dispatcher, run func(*dispatcher.Dispatcher, context.Context) error) {
	t.Helper()
	gate := make(chan struct{})
	var wg sync.WaitGroup
	for _, d := range dispatchers {
		wg.Go(func() {
			<-gate
			if err := run(d, context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	close(gate)
	wg.Wait()
}

// racers are dispatchers for claimAtOnce. There are no calls yet; every other one is a turn ahead, and so begins
// with another queue.
func (s *system) racers(n int, r policy.Policy) []*dispatcher.Dispatcher {
	s.t.Helper()
	s.once(r)
	dispatchers := make([]*dispatcher.Dispatcher, n)
	for i := range dispatchers {
		dispatchers[i] = s.another(r)
		for range i % 2 {
			if _, err := dispatchers[i].Step(context.Background(), false); err != nil {
				s.t.Fatal(err)
			}
		}
	}
	return dispatchers
}

// claimAtOnce has all dispatchers claim together. What waits is in line before, and nothing is published: there
// claims would wait for one another, whatever else they lock.
func (s *system) claimAtOnce(dispatchers []*dispatcher.Dispatcher) {
	s.t.Helper()
	for _, queue := range one[[]string](s, `SELECT array_agg(name) FROM callq.call_queues`) {
		if err := pgx.BeginFunc(context.Background(), s.pool, func(tx pgx.Tx) error {
			_, err := backlog.Drain(context.Background(), tx, &pgx.Batch{}, backlog.Due{Queue: queue, Now: time.Now().Add(time.Hour)})
			return err
		}); err != nil {
			s.t.Fatal(err)
		}
	}
	atOnce(s.t, dispatchers, func(d *dispatcher.Dispatcher, ctx context.Context) error {
		_, err := d.Step(ctx, true)
		return err
	})
}
