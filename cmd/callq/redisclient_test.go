package main

import (
	"strings"
	"testing"

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
		{"redis://h/3?addr=i:1", "cluster: true", "has none but 0"},
		{"redis://h", "cluster: true, sentinel: m", "a cluster needs no sentinels"},
		{"redis://h?addr=i:1&nope=1", "cluster: true", "unexpected option"},
	} {
		w := world{t: t, postgres: noPostgres, redis: c.url, config: "redis: {" + c.config + "}"}
		w.refuses(exitUsage, c.words, "dispatch", "--once")
	}
}
