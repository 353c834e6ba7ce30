package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/local"
)

// onPort is a Redis on a port, and a client of it.
func onPort(t *testing.T, port string, settings map[string]string) (*local.RedisServer, *redis.Client) {
	t.Helper()
	all := map[string]string{"port": port, "bind": "127.0.0.1"}
	for name, value := range settings {
		all[name] = value
	}
	server, err := local.StartRedis(t.Context(), local.Redis{Install: true, Settings: all})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Stop() })
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + port})
	t.Cleanup(func() { _ = client.Close() })
	return server, client
}

// A cluster of two nodes, each of which sends on who asks it for what the other has.
func TestRedisCluster(t *testing.T) {
	t.Parallel()
	ports, buses := []string{freePort(t), freePort(t)}, []string{freePort(t), freePort(t)}
	clients := make([]*redis.Client, 2)
	for i := range clients {
		_, clients[i] = onPort(t, ports[i], map[string]string{"cluster-enabled": "yes", "cluster-port": buses[i]})
		from, to := i*8192, i*8192+8191
		if err := clients[i].ClusterAddSlotsRange(t.Context(), from, to).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := clients[0].Do(t.Context(), "CLUSTER", "MEET", "127.0.0.1", ports[1], buses[1]).Err(); err != nil {
		t.Fatal(err)
	}
	for _, client := range clients {
		eventually(t, "the cluster is whole", func() bool {
			return strings.Contains(client.ClusterInfo(t.Context()).Val(), "cluster_state:ok") &&
				strings.Contains(client.ClusterInfo(t.Context()).Val(), "cluster_slots_ok:16384")
		})
	}
	for _, port := range ports {
		w := newWorld(t)
		w.redis = "redis://127.0.0.1:1?addr=127.0.0.1:" + port // the first that it names is away
		w.config = atAnyPort + "redis: {cluster: true}\n"
		_, end := callsAreDone(t, w)
		end() // one Redis, another database: its worker would take the next one's parcels
	}
}

// sentinelLike is a sentinel of the program that a server runs, wherever that was installed.
func sentinelLike(t *testing.T, server *local.RedisServer, file string) *exec.Cmd {
	t.Helper()
	process := fmt.Sprintf("/proc/%d/", server.Pid())
	binary, err := os.Readlink(process + "exe")
	if err != nil {
		t.Fatal(err)
	}
	environment, err := os.ReadFile(process + "environ")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), binary, file, "--sentinel")
	cmd.Args[0] = "redis-server" // the program goes by its name
	cmd.Env = strings.Split(strings.TrimRight(string(environment), "\x00"), "\x00")
	return cmd
}

// Sentinels name the master, also after the first has died.
func TestRedisSentinel(t *testing.T) {
	t.Parallel()
	first, second, watch := freePort(t), freePort(t), freePort(t)
	master, _ := onPort(t, first, nil)
	_, replica := onPort(t, second, map[string]string{"replicaof": "127.0.0.1 " + first})
	file := filepath.Join(t.TempDir(), "sentinel.conf")
	text := fmt.Sprintf("port %s\nbind 127.0.0.1\nrequirepass sesame\nsentinel monitor themaster 127.0.0.1 %s 1\n"+
		"sentinel down-after-milliseconds themaster 500\nsentinel failover-timeout themaster 3000\n", watch, first)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	sentinel := sentinelLike(t, master, file)
	if err := sentinel.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sentinel.Process.Kill(); _ = sentinel.Wait() })
	asked := redis.NewSentinelClient(&redis.Options{Addr: "127.0.0.1:" + watch, Password: "sesame"})
	t.Cleanup(func() { _ = asked.Close() })
	eventually(t, "the sentinel knows the replica", func() bool {
		list, err := asked.Replicas(t.Context(), "themaster").Result()
		return err == nil && len(list) == 1 && strings.Contains(replica.Info(t.Context(), "replication").Val(), "master_link_status:up")
	})
	w := newWorld(t)
	w.redis = "redis://127.0.0.1:1?addr=127.0.0.1:" + watch
	w.config = atAnyPort + "redis: {sentinel: themaster, sentinel_password: sesame}\n"
	again, _ := callsAreDone(t, w)
	master.Kill()
	again()

	wrong := w
	wrong.config = "redis: {sentinel: other, sentinel_password: sesame}\n"
	if a := wrong.run("dispatch", "--once", "--timeout", "500ms"); a.code != exitUnreachable || strings.Contains(a.stderr, "sesame") {
		t.Errorf("another master's name: exit code %d: %s", a.code, a.stderr)
	}
}

// callsAreDone has some calls made, and returns what does it again and what ends it.
func callsAreDone(t *testing.T, w world) (again, end func()) {
	t.Helper()
	url, _, answer := api(t)
	answer()
	d := w.start("serve")
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("serve:\n%s", &d.stderr)
		}
	})
	awaitReady(t, addressIn(t, &d.stderr))
	again = func() {
		t.Helper()
		for range 20 {
			id := strings.TrimSpace(w.do("enqueue", "--data", fmt.Sprintf(`{"url": %q}`, url)))
			eventually(t, "the call is done", func() bool { return w.get(id).Status == callqueue.StatusDone })
		}
	}
	again()
	return again, func() {
		if code := d.end(); code != exitDone {
			t.Errorf("exit code %d", code)
		}
	}
}

func TestRedisSettingsThatDoNotFit(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ url, config, words string }{
		{"redis://h?addr=i:1", "", "set redis.sentinel or redis.cluster"},
		{"redis://h/3?addr=i:1", "cluster: true", "has none but 0"},
		{"redis://h", "cluster: true, sentinel: m", "a cluster needs no sentinels"},
		{"unix:///x", "sentinel: m", "over the network"},
		{"redis://h?addr=i:1&nope=1", "cluster: true", "unexpected option"},
	} {
		w := world{t: t, postgres: noPostgres, redis: c.url, config: "redis: {" + c.config + "}"}
		if a := w.run("dispatch", "--once"); a.code != exitUsage || !strings.Contains(a.stderr, c.words) {
			t.Errorf("%s with %s: exit code %d: %s", c.url, c.config, a.code, a.stderr)
		}
	}
}
