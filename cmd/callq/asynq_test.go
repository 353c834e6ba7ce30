package main

import (
	"strings"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/callq/callq/internal/handoff"
)

// A queue that somebody paused in Asynqmon is said to be everywhere, and nothing more is claimed for it.
func TestAsynqQueueIsPaused(t *testing.T) {
	t.Parallel()
	w, _ := newWorld(t).withRedis()
	w.config = atAnyPort
	url, _, answer := api(t)
	answer()
	d := w.startReady("serve")
	enqueue := func() string {
		t.Helper()
		return w.call(url)
	}
	id := enqueue()
	w.done(id)

	conn := w.connect()
	client := w.redisClient()
	broker, err := handoff.Open(t.Context(), client, conn)
	must(t, err)
	inspector := asynq.NewInspectorFromRedisClient(client)
	must(t, inspector.PauseQueue(broker.Queue("http")))
	eventually(t, "status says so", func() bool { return strings.Contains(w.do("status"), "its Asynq queue is paused") })
	if a := w.run("doctor"); a.code != exitFindings || !strings.Contains(a.stdout, "Asynq queue "+broker.Queue("http")+" is paused") {
		t.Errorf("doctor: exit code %d:\n%s", a.code, a.stdout)
	}
	id = enqueue()
	eventually(t, "why says so", func() bool { return strings.Contains(w.do("calls", "why", id), "Asynq queue of its workers is paused") })
	ticks := func() string {
		_, body := ask(t, addressIn(t, &d.stderr), "/metrics")
		_, n, _ := strings.Cut(body, `callq_ticks_total{result="ok"} `)
		n, _, _ = strings.Cut(n, "\n")
		return n
	}
	for range 3 { // dispatchers come by, and leave it
		before := ticks()
		eventually(t, "a tick", func() bool { return ticks() != before })
	}
	if attempts := w.get(id).Attempts; attempts != 0 {
		t.Errorf("it was claimed %d times for workers that take nothing", attempts)
	}
	must(t, inspector.UnpauseQueue(broker.Queue("http")))
	w.done(id)
}
