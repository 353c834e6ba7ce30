package handoff_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/callq/callq/internal/redistest"
)

// Tidy takes away what Asynq keeps and nobody needs, and nothing else.
//
//callq:guarantee 8
func TestTidy(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	broker, ctx := newBroker(t, client), t.Context()
	inspector := asynq.NewInspectorFromRedisClient(client)
	for _, pool := range []string{"live", "gone"} {
		queue := broker.Queue(pool)
		key := func(part string) string { return "asynq:{" + queue + "}:" + part }
		send(t, broker, messages(pool, 5)...)
		if err := inspector.ArchiveTask(queue, "e-7-0-0"); err != nil {
			t.Fatal(err)
		}
		active := func(id string, lease time.Duration) { // as a worker's that died
			client.LRem(ctx, key("pending"), 0, id)
			client.LPush(ctx, key("active"), id)
			client.HSet(ctx, key("t:"+id), "state", "active")
			client.ZAdd(ctx, key("lease"), redis.Z{Score: float64(time.Now().Add(lease).Unix()), Member: id})
		}
		active("e-7-1-0", -time.Hour)
		client.HSet(ctx, key("t:foreign"), "msg", "not Asynq's encoding") // Asynq archives nothing beside it
		active("foreign", -time.Hour)
		active("no task", -time.Hour)
		active("e-7-2-0", 20*time.Second)
		client.Set(ctx, key("processed"), 7, 0)
		if err := inspector.PauseQueue(queue); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := asynq.NewClientFromRedisClient(client).Enqueue(asynq.NewTask("x", nil)); err != nil {
		t.Fatal(err)
	}
	other := asynq.NewTask("x", nil) // of somebody else's Asynq
	if _, err := asynq.NewClientFromRedisClient(client).Enqueue(other, asynq.Queue("callqueue")); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second finds nothing
		if _, err := broker.Tidy(ctx, []string{"live", "never seen"}); err != nil {
			t.Fatal(err)
		}
	}
	info, err := inspector.GetQueueInfo(broker.Queue("live"))
	if err != nil {
		t.Fatal(err)
	}
	if left := client.Keys(ctx, "asynq:{"+broker.Queue("live")+"}:t:*").Val(); len(left) != 3 {
		t.Errorf("left are %q", left)
	}
	if info.Pending != 2 || info.Active != 1 || info.Archived != 0 || !info.Paused {
		t.Errorf("of the live pool's queue was left: %+v", info)
	}
	queues, err := inspector.Queues()
	slices.Sort(queues)
	if want := []string{broker.Queue("live"), "callqueue", "default"}; err != nil || !slices.Equal(queues, want) {
		t.Errorf("queues %v (%v), want %v", queues, err, want)
	}
	for _, key := range client.Keys(ctx, "*").Val() {
		if strings.Contains(key, broker.Queue("gone")) {
			t.Errorf("left of the pool that is gone: %s", key)
		}
	}
	if n, err := broker.Tidy(ctx, []string{"live"}); n != 0 || err != nil {
		t.Errorf("a third Tidy found %d (%v)", n, err)
	}
}

// listed runs something once the Asynq queues have been listed.
type listed func()

func (listed) DialHook(next redis.DialHook) redis.DialHook { return next }
func (listed) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (then listed) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if cmd.Name() == "smembers" {
			then()
		}
		return err
	}
}

// Of two dispatchers one may know of a pool's first worker, and the other not yet.
func TestTidyBesideAnother(t *testing.T) {
	t.Parallel()
	client := redistest.New(t)
	broker, ctx := newBroker(t, client), t.Context()
	send(t, broker, messages("new", 5)...)
	beside := false
	client.AddHook(listed(func() {
		if beside {
			return
		}
		beside = true
		if n, err := broker.Tidy(ctx, nil); n == 0 || err != nil {
			t.Errorf("the other removed %d (%v)", n, err)
		}
	}))
	if n, err := broker.Tidy(ctx, []string{"new"}); n != 0 || err != nil {
		t.Errorf("tidied %d (%v)", n, err)
	}
}
