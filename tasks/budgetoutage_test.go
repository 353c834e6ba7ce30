package tasks

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/callq/callq/internal/redistest"
	"github.com/redis/go-redis/v9"
)

// While Redis is gone, or frozen, draws go through or wait, as their budget says; that is logged once.
//
//callq:guarantee 19
func TestDrawWithoutRedis(t *testing.T) {
	t.Parallel()
	for what, strike := range map[string]func(d *drawing) (heal func() error){
		"gone": func(d *drawing) func() error {
			d.server.Kill()
			return func() error { return d.server.Restart(context.Background()) }
		},
		"frozen": func(d *drawing) func() error {
			pid := d.server.Pid()
			if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
				d.t.Fatal(err)
			}
			heal := func() error { return syscall.Kill(pid, syscall.SIGCONT) }
			d.t.Cleanup(func() { _ = heal() }) // a frozen one could not be stopped
			return heal
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			d := newDrawing(t)
			d.publish("open", 1, time.Hour, 1, "open")
			d.publish("closed", 1, time.Hour, 2, "closed")
			call := d.worker(d.counts)
			ctx := soon(t)
			for _, name := range []string{"open", "closed"} {
				if err := call.Draw(ctx, name, 1); err != nil {
					t.Fatal(err)
				}
			}
			heal := strike(d)
			for range 3 {
				if err := call.Draw(ctx, "open", 1); err != nil {
					t.Errorf("open: %v", err)
				}
				if wait, err := call.TryDraw(ctx, "closed", 1); err == nil {
					t.Errorf("closed: drawn, or free in %s", wait)
				}
			}
			short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
			defer cancel()
			if err := call.Draw(short, "closed", 1); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("closed, until its deadline: %v", err)
			}
			waits := make(chan error, 1)
			go func() { waits <- call.Draw(ctx, "closed", 1) }()
			until(t, "a draw waits for Redis", func() bool { return d.counted("callq_budget_outages_total", "closed") >= 4 })
			select {
			case err := <-waits:
				t.Errorf("closed: it ended with %v", err)
			default:
			}
			if err := heal(); err != nil {
				t.Fatal(err)
			}
			if err := <-waits; err != nil {
				if _, refused := errors.AsType[*BudgetError](err); what == "gone" || !refused { // what was asked while it was frozen may have taken it
					t.Errorf("closed, once Redis is back: %v", err)
				}
			}
			until(t, "open is counted again", func() bool { wait, err := call.TryDraw(ctx, "open", 1); return err == nil && wait > 0 })
			if n := d.counted("callq_budget_uncounted_units_total", "open"); n < 3 || n != d.counted("callq_budget_outages_total", "open") {
				t.Errorf("%v units went through uncounted, want 3 at least, and each counted", n)
			}
			if got := d.log.count("Redis does not answer draws"); got != 2 {
				t.Errorf("logged %d times, want once of each budget:\n%s", got, d.log.buf.String())
			}
		})
	}
}

// What does not pass by itself is the caller's error at once, with what to do: no outage, in which an open budget would have no limit
// and a closed one would be asked until the call ends. Other draws stay counted.
func TestDrawThatIsRefused(t *testing.T) {
	t.Parallel()
	d, ctx := newDrawing(t), soon(t)
	for _, onOutage := range []string{"open", "closed"} {
		for _, name := range []string{"spoilt", "listed", "sound"} {
			d.publish(name+onOutage, 1, time.Hour, 1, onOutage)
		}
	}
	admin := d.client()
	for _, command := range []string{
		"SET callq:budget:{spoiltopen} x", "SET callq:budget:{spoiltclosed} x",
		"LPUSH callq:budget:{listedopen} x", "LPUSH callq:budget:{listedclosed} x",
		"ACL SETUSER keyless on >p ~asynq:* +@all", "ACL SETUSER scriptless on >p ~* +@all -evalsha -eval",
		"ACL SETUSER half on >p ~* +@all -get",
	} {
		var words []any
		for _, w := range strings.Fields(command) {
			words = append(words, w)
		}
		if err := admin.Do(ctx, words...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	as := func(user, password string) *redis.Client {
		options := *admin.Options()
		options.Username, options.Password = user, password
		client := redis.NewClient(&options)
		t.Cleanup(func() { _ = client.Close() })
		return client
	}
	locking := redistest.New(t)
	locked := redis.NewClient(locking.Options())
	defer locked.Close()
	if err := locking.ConfigSet(ctx, "requirepass", "secret").Err(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		budget, says, fix string
		client            *redis.Client
	}{
		{"spoilt", "no budget is kept there", "delete that key", admin},
		{"listed", "WRONGTYPE", "delete that key", admin},
		{"sound", "NOPERM", "the right to run scripts", as("keyless", "p")},
		{"sound", "NOPERM", "the right to run scripts", as("scriptless", "p")},
		{"sound", "can't run this command", "the right to run scripts", as("half", "p")},
		{"sound", "WRONGPASS", "user and password", as("half", "q")},
		{"sound", "unauthenticated", "user and password", locked},
		{"none", "no such budget", "under budgets", admin},
	} {
		for _, onOutage := range []string{"open", "closed"} {
			call := d.worker(nil)
			call.budgets.Redis = c.client
			err := call.Draw(ctx, c.budget+onOutage, 1)
			if err == nil {
				t.Errorf("%s, %s: drawn", c.says, onOutage)
				continue
			}
			for _, words := range []string{c.says, c.fix, c.budget + onOutage} {
				if !strings.Contains(err.Error(), words) {
					t.Errorf("%q does not say %q", err, words)
				}
			}
			call.budgets.Redis = admin
			if free, err := call.Peek(ctx, "sound"+onOutage); free != 1 || err != nil {
				t.Errorf("%s: %d units of another draw are free (%v)", c.says, free, err)
			}
		}
	}
	if d.log.count("Redis does not answer") > 0 {
		t.Errorf("taken for an outage:\n%s", d.log.buf.String())
	}
	if err := admin.ConfigSet(ctx, "maxmemory", "1").Err(); err != nil { // full
		t.Fatal(err)
	}
	if err := d.worker(nil).Draw(ctx, "soundopen", 1); err != nil {
		t.Errorf("a full Redis is no outage: %v", err)
	}
}

// A cluster that is drawn on as it cannot be: the draw is an error, and what it named stays counted.
func TestDrawOnAClusterRefused(t *testing.T) {
	t.Parallel()
	d, ctx := newDrawing(t), soon(t)
	d.publish("a", 1, time.Hour, 1, "open")
	d.publish("b", 1, time.Hour, 1, "open")
	nodes := redistest.Cluster(t, 3, 0)
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:" + nodes[0].Port}, ContextTimeoutEnabled: true})
	defer cluster.Close()
	call := d.worker(nil)
	call.budgets.Redis = cluster
	if err := call.Draw(ctx, "a", 1); err != nil {
		t.Fatal(err)
	}
	if err := call.DrawAll(ctx, map[string]int64{"a": 1, "b": 1}); err == nil || !strings.Contains(err.Error(), "one name up to the first slash") {
		t.Errorf("two slots: %v", err)
	}
	if wait, err := call.TryDraw(ctx, "a", 1); wait < 50*time.Minute || err != nil {
		t.Errorf("the second unit is free in %s (%v), want it counted", wait, err)
	}
	moved := 0
	for _, n := range nodes {
		call.budgets.Redis = n.Client
		if _, err := call.TryDraw(ctx, "b", 1); err != nil && strings.Contains(err.Error(), "redis.cluster") {
			moved++
		}
	}
	if moved != 2 {
		t.Errorf("%d of 3 nodes, asked alone, say that they are of a cluster, want 2", moved)
	}
}

// While Redis does not answer, one draw in a while waits for it, and the others go by at once.
func TestADeadRedisCostsOneTimeout(t *testing.T) {
	t.Parallel()
	d := newDrawing(t)
	d.publish("api", 1, time.Hour, 1, "open")
	call, ctx := d.worker(d.counts), soon(t)
	if err := call.Draw(ctx, "api", 1); err != nil {
		t.Fatal(err)
	}
	pid := d.server.Pid()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Kill(pid, syscall.SIGCONT) }() // a frozen one could not be stopped
	asked := 0
	for range 1000 {
		began := time.Now()
		if err := call.Draw(ctx, "api", 1); err != nil {
			t.Fatal(err)
		}
		if time.Since(began) > answerWithin/2 {
			asked++
		}
	}
	if asked != 1 {
		t.Errorf("%d of 1000 draws waited for Redis, want one", asked)
	}
	d.want("callq_budget_uncounted_units_total", "api", 1000)
}

// The rules that were read last hold while Postgres is away.
func TestDrawWithoutPostgres(t *testing.T) {
	t.Parallel()
	d := newDrawing(t)
	d.publish("api", 1, time.Hour, 2, "closed")
	call := d.worker(nil)
	if err := call.Draw(soon(t), "api", 1); err != nil {
		t.Fatal(err)
	}
	d.pool.Close()
	if err := call.budgets.Read(t.Context()); err == nil {
		t.Fatal("Postgres answers")
	}
	if err := call.Draw(soon(t), "api", 1); err != nil {
		t.Error(err)
	}
	if err := call.Draw(soon(t), "other", 1); err == nil {
		t.Error("a budget that nobody knows was drawn on")
	}
}
