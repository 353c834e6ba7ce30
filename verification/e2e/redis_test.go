//go:build e2e

package e2e

import (
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/callq/callq/internal/handoff"
	"github.com/callq/callq/internal/redistest"
	"github.com/callq/callq/verification/fakeapi"
)

const redisCalls = 120

// useRedis has the processes use another Redis than the stack's own.
func (s *stack) useRedis(settings string) {
	s.t.Helper()
	text, err := os.ReadFile(s.config)
	if err != nil {
		s.t.Fatal(err)
	}
	lines := strings.Split(string(text), "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, "redis:") {
			lines[i] = "redis: " + settings
		}
	}
	if err := os.WriteFile(s.config, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// loseRedis runs calls, and has Redis fail over when a part of them was made.
func (s *stack) loseRedis(lose func()) {
	s.t.Helper()
	s.start(2, 2)
	s.insert("default", redisCalls)
	s.served(redisCalls / 4)
	lose()
	s.settled(redisCalls)
}

// The master dies under load, and sentinels promote its replica.
//
//callq:guarantee 3
func TestRedisSentinelFailover(t *testing.T) {
	s := faultStack(t, fakeapi.Config{Latency: apiLatency})
	servers, ports := redistest.Sentinels(t, 3, "themaster", "sesame")
	s.useRedis(fmt.Sprintf("{url: %q, sentinel: themaster, sentinel_password: sesame}",
		fmt.Sprintf("redis://127.0.0.1:%s?addr=127.0.0.1:%s&addr=127.0.0.1:%s", ports[0], ports[1], ports[2])))
	s.loseRedis(servers[0].Server.Kill)
	if role := servers[1].Client.Info(t.Context(), "replication").Val(); !strings.Contains(role, "role:master") {
		t.Errorf("the replica was not promoted:\n%s", role)
	}
}

// The node of a cluster of three that has the workers' queue dies under load, and its replica takes over.
//
//callq:guarantee 3
func TestRedisClusterFailover(t *testing.T) {
	s := faultStack(t, fakeapi.Config{Latency: apiLatency})
	nodes := redistest.Cluster(t, 3, 1)
	s.useRedis(fmt.Sprintf("{url: %q, cluster: true}", "redis://127.0.0.1:"+nodes[0].Port+"?addr=127.0.0.1:"+nodes[1].Port))
	broker := handoff.New(nodes[0].Client, s.pool, slog.New(slog.DiscardHandler))
	if err := broker.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	slot := int(nodes[0].Client.ClusterKeySlot(t.Context(), "{"+broker.Queue("http")+"}").Val())
	holder := 0
	for i := range 3 {
		if slot >= i*16384/3 && slot < (i+1)*16384/3 {
			holder = i
		}
	}
	s.loseRedis(nodes[holder].Server.Kill)
	if role := nodes[3+holder].Client.Info(t.Context(), "replication").Val(); !strings.Contains(role, "role:master") {
		t.Errorf("the replica was not promoted:\n%s", role)
	}
}

// Whatever is done by hand to Asynq's tasks, as Asynqmon can, nothing is sent twice and nothing is lost.
//
//callq:guarantee 2 3
func TestRedisMeddledWith(t *testing.T) {
	s := faultStack(t, fakeapi.Config{Latency: apiLatency})
	client := s.redisClient
	broker := handoff.New(client, s.pool, slog.New(slog.DiscardHandler))
	if err := broker.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	inspector, again, queue := asynq.NewInspectorFromRedisClient(client), asynq.NewClientFromRedisClient(client), broker.Queue("http")
	key := func(part string) string { return "asynq:{" + queue + "}:" + part }
	seen := map[string]*asynq.TaskInfo{} // every task that was ever looked at
	deeds := []func(){
		func() { _, _ = inspector.ArchiveAllPendingTasks(queue) },
		func() { _, _ = inspector.RunAllArchivedTasks(queue) },
		func() { _ = inspector.PauseQueue(queue) },
		func() {
			list, _ := inspector.ListPendingTasks(queue)
			active, _ := inspector.ListActiveTasks(queue)
			for _, task := range append(list, active...) {
				seen[task.ID] = task
				_ = inspector.CancelProcessing(task.ID)
			}
		},
		func() { _ = inspector.UnpauseQueue(queue) },
		func() { // each task once more, under its own id and under another
			for id, task := range seen {
				_, _ = again.Enqueue(asynq.NewTask(task.Type, task.Payload), asynq.Queue(queue), asynq.TaskID(id))
				_, _ = again.Enqueue(asynq.NewTask(task.Type, task.Payload), asynq.Queue(queue))
			}
		},
		func() { client.LMove(t.Context(), key("active"), key("pending"), "LEFT", "RIGHT") },
		func() { _, _ = inspector.DeleteAllPendingTasks(queue) },
		func() { client.LPush(t.Context(), key("pending"), "nothing has this id") },
		func() { _ = inspector.DeleteQueue(queue, true) },
	}
	s.start(2, 2)
	s.insert("default", redisCalls)
	s.await(time.Minute, `SELECT count(*) = 2 FROM callq.call_workers`)
	for n := 0; len(s.api.Requests()) < redisCalls/2; n++ {
		deeds[n%len(deeds)]()
		<-time.After(20 * time.Millisecond)
	}
	_ = inspector.UnpauseQueue(queue)
	s.settled(redisCalls)
	if len(seen) == 0 {
		t.Error("no task was seen in Redis")
	}
}
