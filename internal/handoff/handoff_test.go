package handoff_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/callq/callq/internal/handoff"
	"github.com/callq/callq/internal/pgtest"
	"github.com/callq/callq/internal/redistest"
)

func newBroker(t *testing.T, client redis.UniversalClient) *handoff.Broker {
	t.Helper()
	broker := handoff.New(client, pgtest.New(t), slog.New(slog.DiscardHandler))
	if err := broker.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	return broker
}

// While the database's id is not known nothing is asked of Redis: its queues would be another's.
func TestOpenWithoutPostgres(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	pool.Close()
	broker := handoff.New(redistest.New(t), pool, slog.New(slog.DiscardHandler))
	if ids, err := broker.Pending(t.Context(), "a"); err == nil {
		t.Errorf("pending %v, of whatever database", ids)
	}
}

// messages are n messages for a pool.
func messages(pool string, n int) []handoff.Message {
	list := make([]handoff.Message, n)
	for i := range list {
		list[i] = handoff.Message{Pool: pool, ID: handoff.ID("e", 7, int32(i), 0), Task: "t", Attempts: []handoff.Ref{{CallID: int64(i), Attempt: 1}}}
	}
	return list
}

func send(t *testing.T, broker *handoff.Broker, list ...handoff.Message) {
	t.Helper()
	if err := broker.Send(t.Context(), list...); err != nil {
		t.Fatal(err)
	}
}

// pending are the ids of the messages that wait for pool a.
func pending(t *testing.T, broker *handoff.Broker) []string {
	t.Helper()
	ids, err := broker.Pending(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(ids)
	return ids
}

// serve runs a server of pool a until the test ends, or stop is called.
func serve(t *testing.T, broker *handoff.Broker, deliver func(handoff.Message)) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := broker.Serve(ctx, "a", 2, deliver); err != nil {
			t.Error(err)
		}
	}()
	stop = func() {
		cancel()
		within(t, "the server has stopped", ended)
	}
	t.Cleanup(stop)
	return stop
}

func within[T any](t *testing.T, what string, done <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-done:
	case <-time.After(time.Minute):
		t.Fatalf("not within a minute: %s", what)
	}
	return v
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); !is(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

// waits says whether a client waits in Redis for a task.
func waits(client *redis.Client) bool {
	return strings.Contains(client.ClientList(context.Background()).Val(), "cmd=blmove")
}

// calls is how often Redis has run a command.
func calls(t *testing.T, client *redis.Client, command string) (n int) {
	t.Helper()
	for line := range strings.Lines(client.Info(t.Context(), "commandstats").Val()) {
		if rest, ok := strings.CutPrefix(line, "cmdstat_"+command+":calls="); ok {
			if _, err := fmt.Sscanf(rest, "%d", &n); err != nil {
				t.Fatal(err)
			}
		}
	}
	return n
}

func TestMessagesArriveInOrder(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	broker := newBroker(t, client)
	sent := []handoff.Message{
		{Pool: "a", ID: "1", Task: "x", Attempts: []handoff.Ref{{CallID: 1, Attempt: 1}, {CallID: 1 << 62, Attempt: 1<<31 - 1, Wait: 42 * time.Microsecond}}},
		{Pool: "b", ID: "2", Attempts: []handoff.Ref{{CallID: 3, Attempt: 1}}},
		{Pool: "a", ID: "3", Task: "y:ü", Attempts: []handoff.Ref{{CallID: 4, Attempt: 2}}},
	}
	send(t, broker, sent...)
	send(t, broker, sent[0]) // that is there already
	if ids := pending(t, broker); !slices.Equal(ids, []string{"1", "3"}) {
		t.Errorf("pending %v", ids)
	}
	got := make(chan handoff.Message, 10)
	stop := serve(t, broker, func(m handoff.Message) { got <- m })
	took := map[string]handoff.Message{} // by task: Asynq takes them in order, and runs them at once
	for range 2 {
		m := within(t, "a message", got)
		took[m.Task] = m
	}
	for _, want := range []handoff.Message{sent[0], sent[2]} {
		m := took[want.Task]
		want.ID = "" // the worker has no use for it
		if diff := cmp.Diff(want, m); diff != "" {
			t.Errorf("took (-want +got):\n%s", diff)
		}
	}
	stop()
	if ids := pending(t, broker); len(ids) > 0 {
		t.Errorf("pending after all were taken: %v", ids)
	}
	if keys := client.Keys(t.Context(), "asynq:{*:a}:t:*").Val(); len(keys) > 0 {
		t.Errorf("left in Redis: %v", keys)
	}
}

// Several callqs may share a Redis.
func TestDatabasesAreApart(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	one, other := newBroker(t, client), newBroker(t, client)
	if one.Queue("a") == other.Queue("a") {
		t.Fatalf("two databases have the Asynq queue %s", one.Queue("a"))
	}
	send(t, one, messages("a", 3)...)
	if ids := pending(t, other); len(ids) > 0 {
		t.Errorf("another database's are pending: %v", ids)
	}
	if _, err := other.Tidy(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if ids := pending(t, one); len(ids) != 3 {
		t.Errorf("another database's Tidy left %v", ids)
	}
}

// roundTrips counts what a client sends.
type roundTrips struct{ commands, pipelines atomic.Int64 }

func (r *roundTrips) DialHook(next redis.DialHook) redis.DialHook { return next }
func (r *roundTrips) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { r.commands.Add(1); return next(ctx, cmd) }
}

func (r *roundTrips) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error { r.pipelines.Add(1); return next(ctx, cmds) }
}

func TestSendIsOneRoundTrip(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	broker := newBroker(t, client)
	sendAll := func() {
		t.Helper()
		send(t, broker, messages("a", 20)...)
		if ids := pending(t, broker); len(ids) != 20 {
			t.Errorf("pending %d of 20", len(ids))
		}
	}
	sendAll() // Redis has not had Asynq's script before
	var trips roundTrips
	client.FlushAll(t.Context())
	client.AddHook(&trips)
	if err := broker.Send(t.Context(), messages("a", 20)...); err != nil {
		t.Fatal(err)
	}
	if c, p := trips.commands.Load(), trips.pipelines.Load(); c != 0 || p != 1 {
		t.Errorf("sent %d commands and %d pipelines, want one pipeline", c, p)
	}
	if ids := pending(t, broker); len(ids) != 20 { // Asynq knows the queue again
		t.Errorf("pending %d of 20 after FLUSHALL", len(ids))
	}
	client.FlushAll(t.Context())
	client.ScriptFlush(t.Context())
	sendAll()
}

func TestSendWithoutRedis(t *testing.T) {
	t.Parallel()
	client := redis.NewClient(&redis.Options{MaxRetries: -1, Dialer: func(context.Context, string, string) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	}})
	t.Cleanup(func() { _ = client.Close() })
	broker := newBroker(t, client)
	if err := broker.Send(t.Context(), messages("a", 2)...); err == nil || !strings.HasPrefix(err.Error(), "send 2 Asynq tasks: ") {
		t.Errorf("error %v", err)
	}
	if ids, err := broker.Pending(t.Context(), "a"); err == nil {
		t.Errorf("pending %v without an error", ids)
	}
}

// A copy of a database, such as staging made from production, has queues of its own in the Redis that both use.
func TestCopiesShareARedis(t *testing.T) {
	t.Parallel()
	original, client := pgtest.New(t), redistest.New(t)
	ids := map[string]bool{}
	opened := func(db *pgxpool.Pool) string {
		broker := handoff.New(client, db, slog.New(slog.DiscardHandler))
		if err := broker.Open(t.Context()); err != nil {
			t.Fatal(err)
		}
		ids[broker.Database()] = true
		return broker.Queue("a")
	}
	queue := opened(original)
	if again := opened(original); again != queue {
		t.Errorf("once its queue is %s, then %s", queue, again)
	}
	copied := pgtest.New(t)
	var drawn int64
	if err := original.QueryRow(t.Context(), `SELECT position FROM callq.call_meta WHERE name = 'database'`).Scan(&drawn); err != nil {
		t.Fatal(err)
	}
	if _, err := copied.Exec(t.Context(), `INSERT INTO callq.call_meta (name, position) VALUES ('database', $1)`, drawn); err != nil {
		t.Fatal(err)
	}
	if opened(copied) == queue || len(ids) != 2 {
		t.Errorf("the copy's queue is %s too", queue)
	}
}

// A Redis that answers and takes nothing is away: it is full, or its login may run no script. It is back when it takes hand-overs.
func TestRedisThatTakesNothing(t *testing.T) {
	t.Parallel()
	for name, state := range map[string]func(t *testing.T, client *redis.Client) (back func() error){
		"full": func(t *testing.T, client *redis.Client) func() error {
			for _, setting := range []string{"maxmemory-policy noeviction", "maxmemory 1"} {
				key, value, _ := strings.Cut(setting, " ")
				if err := client.ConfigSet(t.Context(), key, value).Err(); err != nil {
					t.Fatal(err)
				}
			}
			return func() error { return client.ConfigSet(t.Context(), "maxmemory", "0").Err() }
		},
		"no scripts": func(t *testing.T, client *redis.Client) func() error {
			if err := client.Do(t.Context(), "ACL", "SETUSER", "default", "-@scripting").Err(); err != nil {
				t.Fatal(err)
			}
			return func() error { return client.Do(t.Context(), "ACL", "SETUSER", "default", "+@scripting").Err() }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, client := redistest.Start(t, nil, redis.Options{})
			broker := newBroker(t, client)
			if err := broker.Probe(t.Context()); err != nil {
				t.Fatal(err)
			}
			back := state(t, client)
			broker.Deliver(t.Context(), messages("a", 1))
			if err := client.Ping(t.Context()).Err(); err != nil || broker.Reachable(t.Context()) {
				t.Errorf("it takes nothing, and counts as reachable (ping: %v)", err)
			}
			if err := back(); err != nil || !broker.Reachable(t.Context()) {
				t.Errorf("it takes hand-overs again, and counts as away (%v)", err)
			}
		})
	}
}
