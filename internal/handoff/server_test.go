package handoff_test

import (
	"fmt"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/callq/callq/internal/handoff"
	"github.com/callq/callq/internal/redistest"
)

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
	stop := serve(t, broker, func(handoff.Message) { begun <- struct{}{}; <-finish; delivered.Add(1) })
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
			server, client := redistest.Start(t, nil, redis.Options{ContextTimeoutEnabled: true, ReadTimeout: 2 * time.Second})
			broker := newBroker(t, client)
			begun, finish := make(chan struct{}), make(chan struct{})
			stop := serve(t, broker, func(handoff.Message) { begun <- struct{}{}; <-finish })
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
	stop := serve(t, broker, func(handoff.Message) { begun <- struct{}{}; <-finish })
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

// A server outlives its Redis.
func TestRedisComesBack(t *testing.T) {
	t.Parallel()
	server, client := redistest.Start(t, nil, redis.Options{})
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
