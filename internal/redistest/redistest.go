// Package redistest gives a test a Redis of its own, so that tests run side by side and may flush
// theirs: one server, one with sentinels, or a cluster.
package redistest

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
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

// Start is New with settings of the server's, and the client's bounds as in options; the server is the test's to stop and kill.
func Start(t testing.TB, settings map[string]string, options redis.Options) (*local.RedisServer, *redis.Client) {
	t.Helper()
	server := start(t, settings)
	to, err := redis.ParseURL(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	options.Network, options.Addr = to.Network, to.Addr
	return server, client(t, &options)
}

func start(t testing.TB, settings map[string]string) *local.RedisServer {
	t.Helper()
	server, err := local.StartRedis(t.Context(), local.Redis{Settings: settings})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Errorf("stop the test's Redis: %v", err)
		}
	})
	return server
}

func client(t testing.TB, options *redis.Options) *redis.Client {
	t.Helper()
	client := redis.NewClient(options)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// FreePort is a port of the loopback interface that nobody listens on.
func FreePort(t testing.TB) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // closed at once
	if err != nil {
		t.Fatal(err)
	}
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
	n := Node{Port: FreePort(t)}
	all := map[string]string{"port": n.Port, "bind": "127.0.0.1"}
	maps.Copy(all, settings)
	n.Server = start(t, all)
	n.Client = client(t, &redis.Options{Addr: "127.0.0.1:" + n.Port})
	return n
}

// Cluster starts so many masters, each with as many replicas, and waits until all know of each other. The masters
// come first; replica r of master m is node masters*(r+1) + m.
func Cluster(t testing.TB, masters, replicas int) []Node {
	t.Helper()
	ctx := t.Context()
	nodes := make([]Node, masters*(1+replicas))
	for i := range nodes {
		bus := FreePort(t)
		nodes[i] = onPort(t, map[string]string{"cluster-enabled": "yes", "cluster-port": bus, "cluster-node-timeout": "1000"})
		if i < masters {
			from, to := i*16384/masters, (i+1)*16384/masters-1
			if err := nodes[i].Client.ClusterAddSlotsRange(ctx, from, to).Err(); err != nil {
				t.Fatal(err)
			}
		}
		if i == 0 {
			continue
		}
		if err := nodes[0].Client.Do(ctx, "CLUSTER", "MEET", "127.0.0.1", nodes[i].Port, bus).Err(); err != nil {
			t.Fatal(err)
		}
	}
	known := func(n Node) bool {
		return strings.Contains(n.Client.ClusterInfo(ctx).Val(), fmt.Sprintf("cluster_known_nodes:%d\r", len(nodes)))
	}
	for _, n := range nodes {
		await(t, "the nodes know each other", func() bool { return known(n) })
	}
	for i := masters; i < len(nodes); i++ {
		id := nodes[i%masters].Client.Do(ctx, "CLUSTER", "MYID").Val()
		await(t, "the replica has its master", func() bool {
			return nodes[i].Client.Do(ctx, "CLUSTER", "REPLICATE", id).Err() == nil
		})
	}
	for i, n := range nodes {
		await(t, "the cluster is whole", func() bool {
			info := n.Client.ClusterInfo(ctx).Val()
			return strings.Contains(info, "cluster_state:ok") && strings.Contains(info, "cluster_slots_ok:16384") &&
				(i < masters || replicates(ctx, n))
		})
	}
	return nodes
}

func replicates(ctx context.Context, n Node) bool {
	return strings.Contains(n.Client.Info(ctx, "replication").Val(), "master_link_status:up")
}

// Sentinels starts a master and its replica, and so many sentinels that watch them under this name, with a
// password of their own. It returns the servers, the master first, and the sentinels' ports.
func Sentinels(t testing.TB, sentinels int, name, password string) (servers []Node, ports []string) {
	t.Helper()
	program, err := local.FindRedis()
	if err != nil {
		t.Fatal(err)
	}
	master := onPort(t, nil)
	replica := onPort(t, map[string]string{"replicaof": "127.0.0.1 " + master.Port})
	await(t, "the replica has its master", func() bool { return replicates(t.Context(), replica) })
	for range sentinels {
		port := FreePort(t)
		ports = append(ports, port)
		file := filepath.Join(t.TempDir(), "sentinel.conf")
		text := fmt.Sprintf("port %s\nbind 127.0.0.1\nrequirepass %s\nsentinel sentinel-pass %s\nsentinel monitor %s 127.0.0.1 %s %d\n"+
			"sentinel down-after-milliseconds %s 500\nsentinel failover-timeout %s 3000\n",
			port, password, password, name, master.Port, sentinels/2+1, name, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		process := program.Command(t.Context(), program.Name, file, "--sentinel")
		if err := process.Start(); err != nil {
			t.Fatal(err)
		}
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
