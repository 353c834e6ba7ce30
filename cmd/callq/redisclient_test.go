package main

import (
	"strings"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/callq/callq/internal/handoff"
	"github.com/callq/callq/internal/redistest"
)

// A cluster of two nodes, each of which sends on who asks it for what the other has.
func TestRedisCluster(t *testing.T) {
	t.Parallel()
	for _, node := range redistest.Cluster(t, 2, 0) {
		w := newWorld(t)
		w.redis = "redis://127.0.0.1:1?addr=127.0.0.1:" + node.Port // the first that it names is away
		w.config = atAnyPort + "redis: {cluster: true}\n"
		callsAreDone(t, w) // one Redis, another database
	}
}

// Sentinels name the master, also after the first has died.
func TestRedisSentinel(t *testing.T) {
	t.Parallel()
	servers, watch := redistest.Sentinels(t, 1, "themaster", "sesame")
	w := newWorld(t)
	w.redis = "redis://127.0.0.1:1?addr=127.0.0.1:" + watch[0]
	w.config = atAnyPort + "redis: {sentinel: themaster, sentinel_password: sesame}\n"
	again := callsAreDone(t, w)
	servers[0].Server.Kill()
	again()

	wrong := w
	wrong.config = "redis: {sentinel: other, sentinel_password: sesame}\n"
	if a := wrong.run("dispatch", "--once", "--timeout", "500ms"); a.code != exitUnreachable || strings.Contains(a.stderr, "sesame") {
		t.Errorf("another master's name: exit code %d: %s", a.code, a.stderr)
	}
}

// callsAreDone has some calls made, and returns what does it again.
func callsAreDone(t *testing.T, w world) (again func()) {
	t.Helper()
	url := answering(t)
	d := w.start("serve")
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("serve:\n%s", &d.stderr)
		}
	})
	awaitReady(t, addressIn(t, &d.stderr))
	again = func() {
		t.Helper()
		for range 5 {
			id := w.call(url)
			w.done(id)
		}
	}
	again()
	return again
}

func TestRedisSettingsThatDoNotFit(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ url, config, words string }{
		{"redis://h?addr=i:1", "", "set redis.sentinel or redis.cluster"},
		{"redis://h?addr=i:1&nope=1", "cluster: true", "is not a Redis URL"},
	} {
		w := world{t: t, postgres: noPostgres, redis: c.url, config: "redis: {" + c.config + "}"}
		w.refuses(exitUsage, c.words, "serve")
	}
}

// A queue that somebody paused in Asynqmon is said to be everywhere, and nothing more is claimed for it.
func TestAsynqQueueIsPaused(t *testing.T) {
	t.Parallel()
	w, _ := newWorld(t).withRedis()
	w.config = atAnyPort
	url := answering(t)
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
	if a := w.run("doctor"); a.code != exitFindings || !strings.Contains(a.stdout, "the Asynq queue of pool http is paused") {
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
