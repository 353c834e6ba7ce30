package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/callq/callq/internal/local"
)

// node is a Redis at a port.
type node struct {
	*local.RedisServer
	port   string
	client *redis.Client // without retries
}

func (n *node) url() string { return "redis://127.0.0.1:" + n.port }

// redis starts a Redis at a free port, with settings.
func (on *stage) redis(ctx context.Context, settings map[string]string) (*node, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	return on.redisAt(ctx, port, settings)
}

func (on *stage) redisAt(ctx context.Context, port string, settings map[string]string) (*node, error) {
	all := map[string]string{"port": port, "bind": "127.0.0.1"}
	maps.Copy(all, settings)
	server, err := local.StartRedis(ctx, local.Redis{Settings: all})
	if err != nil {
		return nil, err
	}
	on.later(func() { _ = server.Stop() })
	n := &node{RedisServer: server, port: port, client: redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + port, MaxRetries: -1})}
	on.later(func() { _ = n.client.Close() })
	return n, nil
}

// withPostgres are the servers of a set-up with this Redis, a section of callq's configuration, and any Postgres.
func (on *stage) withPostgres(ctx context.Context, section string, fault func(context.Context, *world) error) (*servers, error) {
	postgres, err := on.postgres(ctx, "")
	if err != nil {
		return nil, err
	}
	return &servers{
		postgres: fmt.Sprintf("{url: %q}", postgres.url()), admin: postgres.url(), redis: section, fault: fault,
	}, nil
}

// losesAll is a Redis that dies, and comes back empty.
func losesAll(server *local.RedisServer) func(context.Context, *world) error {
	return func(ctx context.Context, _ *world) error {
		server.Kill()
		return server.Restart(ctx)
	}
}

func redisAlone(ctx context.Context, on *stage) (*servers, error) {
	n, err := on.redis(ctx, nil)
	if err != nil {
		return nil, err
	}
	return on.withPostgres(ctx, fmt.Sprintf("{url: %q}", n.url()), losesAll(n.RedisServer))
}

// redisTLS asks its clients for a certificate, by an authority that no system knows.
func redisTLS(ctx context.Context, on *stage) (*servers, error) {
	pems, err := certificates(on.dir)
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	server, err := local.StartRedis(ctx, local.Redis{Settings: map[string]string{
		"tls-port": port, "bind": "127.0.0.1", "tls-cert-file": pems.server, "tls-key-file": pems.serverKey,
		"tls-ca-cert-file": pems.authority, "tls-auth-clients": "yes",
	}})
	if err != nil {
		return nil, err
	}
	on.later(func() { _ = server.Stop() })
	section := fmt.Sprintf("{url: %q, tls: {ca: %q, cert: %q, key: %q}}", "rediss://127.0.0.1:"+port, pems.authority, pems.client, pems.clientKey)
	return on.withPostgres(ctx, section, losesAll(server))
}

// aclRules are what callq's user of Redis may do, as docs/deploying.md has it.
const aclRules = "~asynq:* ~callq:budget:* resetchannels -@all +hello +ping +info +evalsha +eval +blmove +sadd +srem +sismember " +
	"+smembers +lrange +zrange +del +multi +exec +time +get +set +exists +hset +hdel +hget +hvals +hkeys +lpush +rpush +rpoplpush " +
	"+lrem +lset +lindex +ltrim +zadd +zcard +zrem +zrevrange +zrangebyscore +zremrangebyrank +zremrangebyscore +incr +expireat " +
	"+expire +pexpire +setex"

// redisACL gives callq a user that may do no more than it needs, and hangs up on it.
func redisACL(ctx context.Context, on *stage) (*servers, error) {
	n, err := on.redis(ctx, nil)
	if err != nil {
		return nil, err
	}
	rule := []any{"ACL", "SETUSER", "callq", "reset", "on", ">sesame"}
	for word := range strings.FieldsSeq(aclRules) {
		rule = append(rule, word)
	}
	if err := n.client.Do(ctx, rule...).Err(); err != nil {
		return nil, err
	}
	section := fmt.Sprintf("{url: %q}", "redis://callq:sesame@127.0.0.1:"+n.port)
	return on.withPostgres(ctx, section, func(ctx context.Context, _ *world) error {
		return n.client.Do(ctx, "CLIENT", "KILL", "USER", "callq").Err()
	})
}

// redisEvicts forgets what it was given: callq gives it again.
func redisEvicts(ctx context.Context, on *stage) (*servers, error) {
	n, err := on.redis(ctx, map[string]string{"maxmemory": "3mb", "maxmemory-policy": "allkeys-lru"})
	if err != nil {
		return nil, err
	}
	s, err := on.withPostgres(ctx, fmt.Sprintf("{url: %q}", n.url()), func(ctx context.Context, _ *world) error {
		value := strings.Repeat("x", 1000)
		for i := range 20_000 {
			if err := n.client.Set(ctx, "of another program "+strconv.Itoa(i), value, 0).Err(); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		s.doctor = exitFindings
	}
	return s, err
}

// redisFull is full for three seconds, while callq says that it is not ready.
func redisFull(ctx context.Context, on *stage) (*servers, error) {
	n, err := on.redis(ctx, map[string]string{"maxmemory-policy": "noeviction"})
	if err != nil {
		return nil, err
	}
	return on.withPostgres(ctx, fmt.Sprintf("{url: %q}", n.url()), func(ctx context.Context, w *world) error {
		if err := n.client.ConfigSet(ctx, "maxmemory", "1").Err(); err != nil {
			return err
		}
		for _, listen := range w.listen {
			err := until(ctx, "callq says that Redis is full", func() error { return ready(ctx, listen, http.StatusServiceUnavailable) })
			if err != nil {
				return err
			}
		}
		<-time.After(3 * time.Second)
		if err := n.client.ConfigSet(ctx, "maxmemory", "0").Err(); err != nil {
			return err
		}
		for _, listen := range w.listen {
			err := until(ctx, "callq is ready again", func() error { return ready(ctx, listen, http.StatusOK) })
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// valkeyAlone is Valkey instead of Redis.
func valkeyAlone(ctx context.Context, on *stage) (*servers, error) {
	program, err := local.Find("valkey", []string{"valkey-server"})
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	valkey, err := on.start("valkey-server", func() *exec.Cmd {
		return program.Command(context.Background(), program.Name, "--port", port, "--bind", "127.0.0.1", "--save", "", "--dir", on.dir)
	})
	if err != nil {
		return nil, err
	}
	return on.withPostgres(ctx, fmt.Sprintf("{url: %q}", "redis://127.0.0.1:"+port), func(context.Context, *world) error {
		valkey.end(syscall.SIGKILL)
		return valkey.begin()
	})
}

// sentinelFailover is a primary that dies, two replicas, and three sentinels that promote one.
func sentinelFailover(ctx context.Context, on *stage) (*servers, error) {
	primary, err := on.redis(ctx, map[string]string{"repl-diskless-sync-delay": "0"})
	if err != nil {
		return nil, err
	}
	for range 2 {
		replica, err := on.redis(ctx, map[string]string{"replicaof": "127.0.0.1 " + primary.port})
		if err != nil {
			return nil, err
		}
		if err := until(ctx, "the replica has its primary", func() error { return replica.says(ctx, "replication", "master_link_status:up") }); err != nil {
			return nil, err
		}
	}
	const name = "mymaster"
	program, err := local.FindRedis()
	if err != nil {
		return nil, err
	}
	ports, err := freePorts(3)
	if err != nil {
		return nil, err
	}
	for _, port := range ports {
		text := fmt.Sprintf("port %s\nbind 127.0.0.1\nsentinel monitor %s 127.0.0.1 %s 2\nsentinel down-after-milliseconds %s 2000\n"+
			"sentinel failover-timeout %s 6000\n", port, name, primary.port, name, name)
		config, err := ownFile(on.dir, "sentinel-"+port+".conf", text)
		if err != nil {
			return nil, err
		}
		if _, err := on.start("sentinel", func() *exec.Cmd {
			return program.Command(context.Background(), program.Name, config, "--sentinel")
		}); err != nil {
			return nil, err
		}
	}
	var asked []*redis.SentinelClient
	for _, port := range ports {
		sentinel := redis.NewSentinelClient(&redis.Options{Addr: "127.0.0.1:" + port, MaxRetries: -1})
		on.later(func() { _ = sentinel.Close() })
		asked = append(asked, sentinel)
		if err := until(ctx, "the sentinel knows the replicas and the others", func() error {
			replicas, err := sentinel.Replicas(ctx, name).Result()
			others, err2 := sentinel.Sentinels(ctx, name).Result()
			if err == nil && err2 == nil && (len(replicas) != 2 || len(others) != 2) {
				err = fmt.Errorf("%d replicas and %d others", len(replicas), len(others))
			}
			return errors.Join(err, err2)
		}); err != nil {
			return nil, err
		}
	}
	section := fmt.Sprintf("{url: %q, sentinel: %s}",
		fmt.Sprintf("redis://127.0.0.1:%s?addr=127.0.0.1:%s&addr=127.0.0.1:%s", ports[0], ports[1], ports[2]), name)
	return on.withPostgres(ctx, section, func(ctx context.Context, _ *world) error {
		primary.Kill()
		return until(ctx, "a replica is promoted", func() error {
			at, err := asked[0].GetMasterAddrByName(ctx, name).Result()
			if err == nil && at[1] == primary.port {
				err = errors.New("it is still the former primary")
			}
			return err
		})
	})
}

// says is nil if a section of the server's INFO has these lines.
func (n *node) says(ctx context.Context, section string, lines ...string) error {
	info, err := n.client.Info(ctx, section).Result()
	if err != nil {
		return err
	}
	return holds(info, lines...)
}

func holds(info string, lines ...string) error {
	for _, line := range lines {
		if !strings.Contains(info, line+"\r") {
			return fmt.Errorf("no %s in %s", line, info)
		}
	}
	return nil
}

// clusterSlotMoves is a cluster of three, whose slot of callq's Asynq queue moves to another node, slowly.
func clusterSlotMoves(ctx context.Context, on *stage) (*servers, error) {
	nodes := make([]*node, 3)
	ports, err := freePorts(6)
	if err != nil {
		return nil, err
	}
	for i := range nodes {
		if nodes[i], err = on.redisAt(ctx, ports[i], map[string]string{
			"cluster-enabled": "yes", "cluster-port": ports[3+i], "cluster-node-timeout": "2000",
		}); err != nil {
			return nil, err
		}
		err := nodes[i].client.ClusterAddSlotsRange(ctx, i*slots/3, (i+1)*slots/3-1).Err()
		if i > 0 && err == nil {
			err = nodes[0].client.Do(ctx, "CLUSTER", "MEET", "127.0.0.1", ports[i], ports[3+i]).Err()
		}
		if err != nil {
			return nil, err
		}
	}
	for _, n := range nodes {
		if err := until(ctx, "the cluster is whole", func() error {
			info, err := n.client.ClusterInfo(ctx).Result()
			return errors.Join(err, holds(info, "cluster_state:ok", "cluster_slots_ok:16384", "cluster_known_nodes:3"))
		}); err != nil {
			return nil, err
		}
	}
	section := fmt.Sprintf("{url: %q, cluster: true}", nodes[0].url()+"?addr=127.0.0.1:"+nodes[1].port)
	return on.withPostgres(ctx, section, func(ctx context.Context, _ *world) error { return moveSlot(ctx, nodes) })
}

const slots = 16384

// moveSlot moves the slot of callq's Asynq queue to the next node. For two seconds it is on its way.
func moveSlot(ctx context.Context, nodes []*node) error {
	var queues []string
	for _, n := range nodes { // the set of Asynq's queues is on one of them
		list, err := n.client.SMembers(ctx, "asynq:queues").Result()
		if err == nil {
			queues = append(queues, list...)
		}
	}
	if len(queues) != 1 {
		return fmt.Errorf("there are the Asynq queues %q, want one", queues)
	}
	slot, err := nodes[0].client.ClusterKeySlot(ctx, "asynq:{"+queues[0]+"}:pending").Result()
	if err != nil {
		return err
	}
	holder := 0
	for i := range nodes {
		if int(slot) >= i*slots/3 && int(slot) < (i+1)*slots/3 {
			holder = i
		}
	}
	from, to := nodes[holder], nodes[(holder+1)%len(nodes)]
	ids := map[*node]string{}
	for _, n := range nodes {
		if ids[n], err = n.client.Do(ctx, "CLUSTER", "MYID").Text(); err != nil {
			return err
		}
	}
	err = errors.Join(
		to.client.Do(ctx, "CLUSTER", "SETSLOT", slot, "IMPORTING", ids[from]).Err(),
		from.client.Do(ctx, "CLUSTER", "SETSLOT", slot, "MIGRATING", ids[to]).Err())
	if err != nil {
		return err
	}
	<-time.After(2 * time.Second)
	for {
		keys, err := from.client.ClusterGetKeysInSlot(ctx, int(slot), 100).Result()
		if err != nil {
			return err
		}
		if len(keys) == 0 {
			break
		}
		move := []any{"MIGRATE", "127.0.0.1", to.port, "", 0, 5000, "KEYS"}
		for _, key := range keys {
			move = append(move, key)
		}
		if err := from.client.Do(ctx, move...).Err(); err != nil {
			return err
		}
	}
	for _, n := range []*node{to, from} {
		if err := n.client.Do(ctx, "CLUSTER", "SETSLOT", slot, "NODE", ids[to]).Err(); err != nil {
			return err
		}
	}
	return nil
}
