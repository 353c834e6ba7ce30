package handoff_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/callq/callq/internal/handoff"
	"github.com/callq/callq/internal/local"
	"github.com/callq/callq/internal/pgtest"
	"github.com/callq/callq/internal/redistest"
)

func newBroker(t *testing.T, client redis.UniversalClient) *handoff.Broker {
	t.Helper()
	broker, err := handoff.Open(t.Context(), client, pgtest.New(t))
	if err != nil {
		t.Fatal(err)
	}
	return broker
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
	return slices.Sorted(maps.Keys(ids))
}

// serve runs a server of pool a until the test ends, or stop is called.
func serve(t *testing.T, broker *handoff.Broker, deliver func(handoff.Message)) (server *handoff.Server, stop func()) {
	t.Helper()
	server = broker.NewServer(handoff.ServerConfig{Pool: "a", Concurrency: 2, Deliver: deliver, Logger: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := server.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	stop = func() {
		cancel()
		within(t, "the server has stopped", ended)
	}
	t.Cleanup(stop)
	return server, stop
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
		{Pool: "a", ID: "1", Task: "x", Attempts: []handoff.Ref{{CallID: 1, Attempt: 1}, {CallID: 1 << 62, Attempt: 1<<31 - 1}}},
		{Pool: "b", ID: "2", Attempts: []handoff.Ref{{CallID: 3, Attempt: 1}}},
		{Pool: "a", ID: "3", Task: "y:ü", Attempts: []handoff.Ref{{CallID: 4, Attempt: 2}}},
	}
	send(t, broker, sent...)
	send(t, broker, sent[0]) // that is there already
	if ids := pending(t, broker); !slices.Equal(ids, []string{"1", "3"}) {
		t.Errorf("pending %v", ids)
	}
	got := make(chan handoff.Message, 10)
	_, stop := serve(t, broker, func(m handoff.Message) { got <- m })
	for _, want := range []handoff.Message{sent[0], sent[2]} {
		m := within(t, "a message", got)
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

// An idle server waits in Redis and does not poll. Where this fails after an upgrade of Asynq, the gate no longer
// knows Asynq's dequeue: see gate.EvalSha.
func TestIdleServerWaits(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	broker := newBroker(t, client)
	got := make(chan handoff.Message, 1)
	serve(t, broker, func(m handoff.Message) { got <- m })
	eventually(t, "the server waits in Redis", func() bool { return waits(client) })
	begun, before := time.Now(), calls(t, client, "evalsha")
	const n = 50
	for _, m := range messages("a", n) {
		send(t, broker, m)
		within(t, "a message", got)
		eventually(t, "the server waits again", func() bool { return waits(client) })
	}
	// A message is sent, dequeued, done, and asked after once more; Asynq's own upkeep, and a wait that ends, add few.
	most := 4*n + 4*int(time.Since(begun)/time.Second+1)
	if ran := calls(t, client, "evalsha") - before; ran > most {
		t.Errorf("%d scripts ran for %d messages; with a gate that waits at most %d do", ran, n, most)
	}
}

// Without leave to wait in Redis, Asynq polls.
func TestWaitIsForbidden(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	if err := client.ACLSetUser(t.Context(), "plain", "on", "nopass", "~*", "&*", "+@all", "-blmove").Err(); err != nil {
		t.Fatal(err)
	}
	options := *client.Options()
	options.Username, options.Password = "plain", "any"
	plain := redis.NewClient(&options)
	t.Cleanup(func() { _ = plain.Close() })
	broker := newBroker(t, plain)
	got := make(chan handoff.Message, 1)
	serve(t, broker, func(m handoff.Message) { got <- m })
	for _, m := range messages("a", 3) {
		send(t, broker, m)
		within(t, "a message", got)
	}
	if n := calls(t, client, "blmove"); n > 1 { // one that is refused counts with Redis 7
		t.Errorf("asked %d times for what is forbidden", n)
	}
}

// A queue that is paused, by Asynqmon say, is said to be, and is not asked for all the time.
func TestPaused(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	broker := newBroker(t, client)
	got := make(chan handoff.Message, 10)
	server, _ := serve(t, broker, func(m handoff.Message) { got <- m })
	first := messages("a", 3)
	send(t, broker, first[0])
	within(t, "a message", got)
	if server.Paused() {
		t.Error("paused before it is")
	}
	inspector := asynq.NewInspectorFromRedisClient(client)
	if err := inspector.PauseQueue(broker.Queue("a")); err != nil {
		t.Fatal(err)
	}
	begun, before := time.Now(), calls(t, client, "evalsha")
	send(t, broker, first[1])
	eventually(t, "it says that it is paused", server.Paused)
	if list, err := handoff.Paused(t.Context(), client); err != nil || !slices.Equal(list, []string{broker.Queue("a")}) {
		t.Errorf("paused are %v (%v)", list, err)
	}
	eventually(t, "it has been for a while", func() bool { return time.Since(begun) > 3*time.Second })
	most := 5 * int(time.Since(begun)/time.Second+2)
	if ran := calls(t, client, "evalsha") - before; ran > most {
		t.Errorf("%d scripts ran while it was paused, at most %d should", ran, most)
	}
	if len(got) > 0 {
		t.Error("a message was taken from a paused queue")
	}
	if err := inspector.UnpauseQueue(broker.Queue("a")); err != nil {
		t.Fatal(err)
	}
	within(t, "the message that waited", got)
	eventually(t, "it says that it is not paused", func() bool { return !server.Paused() })
}

// stops ends a server, and says when it has.
func stops(stop func()) <-chan struct{} {
	stopped := make(chan struct{})
	go func() { stop(); close(stopped) }()
	return stopped
}

// staysOpen fails the test if a channel is closed within the time that a stop gives Asynq, and half as much again.
func staysOpen(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
		t.Errorf("%s during a delivery", what)
	case <-time.After(3 * time.Second):
	}
}

// A stop waits for what is being delivered, and takes nothing more.
func TestStop(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	broker := newBroker(t, client)
	begun, finish := make(chan struct{}), make(chan struct{})
	var delivered atomic.Int64
	_, stop := serve(t, broker, func(handoff.Message) { begun <- struct{}{}; <-finish; delivered.Add(1) })
	list := messages("a", 3)
	send(t, broker, list[0])
	within(t, "the delivery began", begun)
	eventually(t, "it waits for another", func() bool { return waits(client) })
	stopped := stops(stop)
	eventually(t, "it waits no more", func() bool { return !waits(client) })
	send(t, broker, list[1:]...)
	staysOpen(t, "it stopped", stopped)
	close(finish)
	within(t, "it stopped", stopped)
	if ids := pending(t, broker); delivered.Load() != 1 || len(ids) != 2 {
		t.Errorf("%d were delivered, and pending are %v", delivered.Load(), ids)
	}
}

// A Redis that is silent, or gone, does not hold up a stop, nor does it matter that its client is closed after it.
func TestStopWithoutRedis(t *testing.T) {
	t.Parallel()
	for name, signal := range map[string]syscall.Signal{"silent": syscall.SIGSTOP, "killed": syscall.SIGKILL} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, err := local.StartRedis(t.Context(), local.Redis{Install: true})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = server.Stop() })
			options, err := redis.ParseURL(server.URL())
			if err != nil {
				t.Fatal(err)
			}
			options.ContextTimeoutEnabled, options.ReadTimeout = true, 2*time.Second
			client := redis.NewClient(options)
			broker := newBroker(t, client)
			begun, finish := make(chan struct{}), make(chan struct{})
			_, stop := serve(t, broker, func(handoff.Message) { begun <- struct{}{}; <-finish })
			send(t, broker, messages("a", 1)...)
			within(t, "the delivery began", begun)
			pid := server.Pid()
			if err := syscall.Kill(pid, signal); err != nil {
				t.Fatal(err)
			}
			stopped := stops(stop)
			staysOpen(t, "it stopped", stopped)
			close(finish)
			select {
			case <-stopped:
			case <-time.After(20 * time.Second):
				t.Error("it had not stopped in 20 s")
			}
			_ = client.Close()
			if signal == syscall.SIGSTOP {
				_ = syscall.Kill(pid, syscall.SIGCONT)
			}
		})
	}
}

// What Asynq takes for done, as where its lease has run out, may still be delivered.
func TestStopWaitsForWhatAsynqGaveUp(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	broker := newBroker(t, client)
	begun, finish := make(chan struct{}), make(chan struct{})
	_, stop := serve(t, broker, func(handoff.Message) { begun <- struct{}{}; <-finish })
	send(t, broker, messages("a", 1)...)
	within(t, "the delivery began", begun)
	if err := asynq.NewInspectorFromRedisClient(client).CancelProcessing("e-7-0-0"); err != nil {
		t.Fatal(err)
	}
	stopped := stops(stop)
	staysOpen(t, "it stopped", stopped)
	close(finish)
	within(t, "it stopped", stopped)
}

// However long a server was idle, what it takes then it has a whole lease of.
func TestLeaseBeginsWithTheTask(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	broker := newBroker(t, client)
	begun, finish := make(chan struct{}), make(chan struct{})
	serve(t, broker, func(handoff.Message) { begun <- struct{}{}; <-finish })
	idle, asked := time.Now(), calls(t, client, "blmove")
	eventually(t, "it has been idle for a while", func() bool {
		return time.Since(idle) > 8*time.Second && calls(t, client, "blmove") > asked+5
	})
	before := time.Now()
	send(t, broker, messages("a", 1)...)
	within(t, "the delivery began", begun)
	lease, err := client.ZScore(t.Context(), "asynq:{"+broker.Queue("a")+"}:lease", "e-7-0-0").Result()
	if err != nil {
		t.Fatal(err)
	}
	if left := time.Unix(int64(lease), 0).Sub(before); left < 25*time.Second {
		t.Errorf("its lease has %s left", left)
	}
	close(finish)
}

// A Redis that takes no writes is not asked all the time.
func TestRedisIsFull(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	broker := newBroker(t, client)
	got := make(chan handoff.Message, 1)
	serve(t, broker, func(m handoff.Message) { got <- m })
	if err := asynq.NewInspectorFromRedisClient(client).PauseQueue(broker.Queue("a")); err != nil { // then the dequeue is a read
		t.Fatal(err)
	}
	send(t, broker, messages("a", 1)...)
	client.ConfigSet(t.Context(), "maxmemory", "1")
	begun, before := time.Now(), calls(t, client, "evalsha")
	eventually(t, "it has been full for a while", func() bool { return time.Since(begun) > 3*time.Second })
	most := 10 * int(time.Since(begun)/time.Second+2)
	if ran := calls(t, client, "evalsha") - before; ran > most {
		t.Errorf("%d scripts ran while Redis was full, at most %d should", ran, most)
	}
	client.ConfigSet(t.Context(), "maxmemory", "0")
	if err := asynq.NewInspectorFromRedisClient(client).UnpauseQueue(broker.Queue("a")); err != nil {
		t.Fatal(err)
	}
	within(t, "the message", got)
}

// The id in Redis is the database's, whoever asks, and whatever a failover has lost.
func TestReopen(t *testing.T) {
	t.Parallel()
	client, pool := redistest.New(t), pgtest.New(t)
	first, err := handoff.Open(t.Context(), client, pool)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(t.Context(), `DELETE FROM call_marks`); err != nil {
		t.Fatal(err)
	}
	again, err := first.Reopen(t.Context(), pool)
	if err != nil {
		t.Fatal(err)
	}
	other, err := handoff.Open(t.Context(), client, pool)
	if err != nil {
		t.Fatal(err)
	}
	if a, b, c := first.Queue("p"), again.Queue("p"), other.Queue("p"); a != b || b != c {
		t.Errorf("queues %s, %s, %s", a, b, c)
	}
}

// A server outlives its Redis.
func TestRedisComesBack(t *testing.T) {
	t.Parallel()
	server, err := local.StartRedis(t.Context(), local.Redis{Install: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Stop() })
	options, err := redis.ParseURL(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	client := redis.NewClient(options)
	t.Cleanup(func() { _ = client.Close() })
	broker := newBroker(t, client)
	got := make(chan handoff.Message, 1)
	serve(t, broker, func(m handoff.Message) { got <- m })
	for i, m := range messages("a", 3) {
		send(t, broker, m)
		within(t, fmt.Sprintf("message %d", i), got)
		if err := server.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
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
