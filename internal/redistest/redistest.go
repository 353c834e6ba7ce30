// Package redistest gives a test a Redis of its own, so that tests run side by side and may flush
// theirs: one server, one with sentinels, or a cluster.
package redistest

import (
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/callq/callq/internal/local"
)

// New returns a client of a fresh, real Redis; both go when t ends.
func New(t testing.TB) *redis.Client {
	t.Helper()
	_, client := Start(t, nil, redis.Options{})
	return client
}

// Start is New with settings of the server's and options of the client's. The server is the test's to stop and kill.
func Start(t testing.TB, settings map[string]string, options redis.Options) (*local.RedisServer, *redis.Client) {
	t.Helper()
	server, err := local.StartRedis(t.Context(), local.Redis{Settings: settings})
	must(t, err)
	t.Cleanup(func() { must(t, server.Stop()) })
	if options.Addr == "" {
		to, err := redis.ParseURL(server.URL())
		must(t, err)
		options.Network, options.Addr = to.Network, to.Addr
	}
	client := redis.NewClient(&options)
	t.Cleanup(func() { _ = client.Close() })
	return server, client
}

// FreePort is a port of the loopback interface that is free.
func FreePort(t testing.TB) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // closed at once
	must(t, err)
	defer listener.Close()
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	return port
}

// Node is a server that is reached over the network.
type Node struct {
	Server *local.RedisServer
	Client *redis.Client
	Port   string
}

func onPort(t testing.TB, settings map[string]string) Node {
	t.Helper()
	port := FreePort(t)
	all := map[string]string{"port": port, "bind": "127.0.0.1"}
	maps.Copy(all, settings)
	server, client := Start(t, all, redis.Options{Addr: "127.0.0.1:" + port})
	return Node{server, client, port}
}

// has reports whether a server's INFO has all these lines.
func has(info *redis.StringCmd, lines ...string) bool {
	return !slices.ContainsFunc(lines, func(line string) bool { return !strings.Contains(info.Val(), line+"\r") })
}

const linked = "master_link_status:up" // of a replica

// Cluster starts so many masters, each with as many replicas, and waits until all know of each other. The masters
// come first; replica r of master m is node masters*(r+1) + m.
func Cluster(t testing.TB, masters, replicas int) []Node {
	t.Helper()
	ctx := t.Context()
	nodes := make([]Node, masters*(1+replicas))
	for i := range nodes {
		bus := FreePort(t)
		nodes[i] = onPort(t, map[string]string{"cluster-enabled": "yes", "cluster-port": bus, "cluster-node-timeout": "1000"})
		var err error
		if i < masters {
			err = nodes[i].Client.ClusterAddSlotsRange(ctx, i*16384/masters, (i+1)*16384/masters-1).Err()
		}
		if i > 0 && err == nil {
			err = nodes[0].Client.Do(ctx, "CLUSTER", "MEET", "127.0.0.1", nodes[i].Port, bus).Err()
		}
		must(t, err)
	}
	for i := masters; i < len(nodes); i++ {
		id := nodes[i%masters].Client.Do(ctx, "CLUSTER", "MYID").Val()
		await(t, "the replica knows its master", func() bool {
			return nodes[i].Client.Do(ctx, "CLUSTER", "REPLICATE", id).Err() == nil
		})
	}
	for i, n := range nodes {
		await(t, "the cluster is whole", func() bool {
			known := fmt.Sprintf("cluster_known_nodes:%d", len(nodes))
			return has(n.Client.ClusterInfo(ctx), "cluster_state:ok", "cluster_slots_ok:16384", known) &&
				(i < masters || has(n.Client.Info(ctx, "replication"), linked))
		})
	}
	return nodes
}

// Sentinels starts a master and its replica, and so many sentinels that watch them under this name, with a
// password of their own; a login "watcher" has it, too. It returns the servers, the master first, and the sentinels' ports.
func Sentinels(t testing.TB, sentinels int, name, password string) (servers []Node, ports []string) {
	t.Helper()
	program, err := local.FindRedis()
	must(t, err)
	master := onPort(t, nil)
	replica := onPort(t, map[string]string{"replicaof": "127.0.0.1 " + master.Port})
	await(t, "the replica has its master", func() bool { return has(replica.Client.Info(t.Context(), "replication"), linked) })
	for range sentinels {
		port := FreePort(t)
		ports = append(ports, port)
		file := filepath.Join(t.TempDir(), "sentinel.conf")
		text := fmt.Sprintf("port %s\nbind 127.0.0.1\nrequirepass %s\nuser watcher on >%s allchannels +@all\nsentinel sentinel-pass %s\nsentinel monitor %s 127.0.0.1 %s %d\n"+
			"sentinel down-after-milliseconds %s 500\nsentinel failover-timeout %s 3000\n",
			port, password, password, password, name, master.Port, sentinels/2+1, name, name)
		must(t, os.WriteFile(file, []byte(text), 0o600))
		process := program.Command(t.Context(), program.Name, file, "--sentinel")
		must(t, process.Start())
		t.Cleanup(func() { _ = process.Process.Kill(); _ = process.Wait() })
	}
	for _, port := range ports {
		asked := redis.NewSentinelClient(&redis.Options{Addr: "127.0.0.1:" + port, Password: password})
		t.Cleanup(func() { _ = asked.Close() })
		await(t, "the sentinel knows the replica and the others", func() bool {
			replicas, err := asked.Replicas(t.Context(), name).Result()
			others, err2 := asked.Sentinels(t.Context(), name).Result()
			return err == nil && err2 == nil && len(replicas) == 1 && len(others) == sentinels-1
		})
	}
	return []Node{master, replica}, ports
}

func await(t testing.TB, fact string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); !holds(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("not within a minute: %s", fact)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
