package main

import (
	"net/http"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

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
	w.config = atAnyPort + "redis: {sentinel: themaster, sentinel_username: watcher, sentinel_password: sesame}\n"
	w.do("dispatch", "--once")
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

// A sentinel, and one node of a cluster, answer as a Redis does: it is said which setting is missing.
func TestRedisIsNoPlainServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.config = atAnyPort
	_, watch := redistest.Sentinels(t, 1, "themaster", "sesame")
	nodes := redistest.Cluster(t, 3, 0)
	for address, setting := range map[string]string{
		":sesame@127.0.0.1:" + watch[0]: "leads to a sentinel: set redis.sentinel to the master's name",
		"127.0.0.1:" + nodes[0].Port:    "leads to a cluster: set redis.cluster: true",
	} {
		w.redis = "redis://" + address
		w.refuses(exitUsage, setting, "dispatch", "--once")
		w.refuses(exitUsage, setting, "doctor")
		d := w.start("serve")
		eventually(t, "serve says so, and is not ready", func() bool { return strings.Contains(d.stderr.String(), setting) })
		if status, _ := ask(t, addressIn(t, &d.stderr), "/readyz"); status != http.StatusServiceUnavailable {
			t.Errorf("/readyz is %d", status)
		}
	}
}

// A server that asks for a certificate, with an authority of its own.
func TestRedisAsksForACertificate(t *testing.T) {
	t.Parallel()
	cert, key, client, clientKey := certificates(t)
	port := redistest.FreePort(t)
	redistest.Start(t, map[string]string{
		"tls-port": port, "tls-cert-file": cert, "tls-key-file": key, "tls-ca-cert-file": client, "tls-auth-clients": "yes", "bind": "127.0.0.1",
	}, redis.Options{})
	w := newWorld(t)
	w.redis = "rediss://127.0.0.1:" + port
	for config, words := range map[string]string{
		"{ca: " + cert + ", cert: " + client + ", key: " + clientKey + "}": "",
		"{ca: " + cert + "}": "cannot be reached",
		"{ca: " + cert + ", cert: " + cert + ", key: " + key + "}":           "cannot be reached",
		"{ca: " + client + ", cert: " + client + ", key: " + clientKey + "}": "certificate",
	} {
		w.config = atAnyPort + "redis: {tls: " + config + "}\n"
		if words == "" {
			w.do("dispatch", "--once")
			continue
		}
		w.refuses(exitUnreachable, words, "dispatch", "--once", "--timeout", "2s")
	}
}

func TestRedisSettingsThatDoNotFit(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ url, config, words string }{
		{"redis://h?addr=i:1", "", "set redis.sentinel or redis.cluster"},
		{"redis://h/3?addr=i:1", "cluster: true", "has none but 0"},
		{"redis://h", "cluster: true, sentinel: m", "a cluster needs no sentinels"},
		{"redis://h?addr=i:1&nope=1", "cluster: true", "is not a Redis URL"},
		{"redis://h", "tls: {ca: /no/such.pem}", "begin it with rediss://"},
		{"rediss://h", "tls: {ca: /no/such.pem}", "redis.tls.ca: open /no/such.pem"},
		{"rediss://h", "tls: {cert: /no/such.pem}", "needs both cert and key"},
		{"rediss://h", "tls: {cert: /no/such.pem, key: /no/such.key}", "redis.tls.cert and redis.tls.key: open /no/such.pem"},
	} {
		w := world{t: t, postgres: noPostgres, redis: c.url, config: "redis: {" + c.config + "}"}
		w.refuses(exitUsage, c.words, "serve")
	}
}
