package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/callq/callq/internal/doctor"
	"github.com/callq/callq/internal/maintenance"
	"github.com/callq/callq/internal/recovery"
)

// bloat leaves call_attempts mostly unused, as deleting most of it does.
const bloatAttempts = `ALTER TABLE call_attempts SET (autovacuum_enabled = off);
	INSERT INTO call_attempts (call_id, attempt, cost, claimed_at, finished_at, outcome, queue, task, key, charged, error)
	SELECT n, 1, 1, now(), now() - interval '1 year', 'not_sent', 'default', 'http', '', '[]', repeat('x', 1000) FROM generate_series(1, 20000) AS n;
	DELETE FROM call_attempts WHERE call_id % 200 <> 0`

func TestVacuumFull(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	full := func(args ...string) []doctor.Table {
		t.Helper()
		out := w.do(append([]string{"maintain", "vacuum", "--full", "-o", "json"}, args...)...)
		return decode[[]doctor.Table](t, out)
	}
	if got := full(); len(got) != 0 {
		t.Errorf("on new tables: %+v", got)
	}
	w.exec(bloatAttempts)
	w.do("maintain", "vacuum") // what is dead is free now, and still there

	dry := full("--dry-run")
	if len(dry) != 1 || dry[0].Name != "call_attempts" || dry[0].FreeBytes < 15_000_000 {
		t.Fatalf("it would vacuum %+v", dry)
	}
	w.do("enqueue") // what waits is no matter
	w.refuses(exitUsage, "Lock call_attempts, and write them anew? this cannot be undone", "maintain", "vacuum", "--full")
	w.exec(`UPDATE call_queue SET status = 'dispatched';
		INSERT INTO callq.call_open (call_id, attempt, message_no, batch, cost, claimed_at, handed_at, start_by, epoch, pool, queue, task, key, limits, keys, costs)
		SELECT id, 1, 0, 1, 1, now(), now(), now() + interval '1 minute', callq.epoch(), 'http', 'default', 'http', '', '{}', '{}', '{}' FROM call_queue`)
	w.refuses(exitFailed, "handed over or run (1)", "maintain", "vacuum", "--full", "--yes")
	if again := full("--dry-run"); len(again) != 1 {
		t.Errorf("it was refused, and done: %+v", again)
	}
	w.exec(`DELETE FROM callq.call_open`)
	if got := full("--yes"); len(got) != 1 {
		t.Errorf("it wrote %+v anew", got)
	}
	if after := full("--dry-run"); len(after) != 0 {
		t.Errorf("afterwards it would vacuum %+v", after)
	}
}

// A table that somebody uses is not waited for for ever, for what comes behind waits too.
func TestVacuumFullOfATableInUse(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(bloatAttempts)
	w.hold("BEGIN", "LOCK call_queue IN ACCESS SHARE MODE", "SELECT FROM call_attempts LIMIT 1")
	w.refuses(exitFailed, "somebody uses the table", "maintain", "vacuum", "--full", "--yes")
}

func TestMaintainStatus(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`INSERT INTO call_queue (status, finished_at) SELECT 'done', now() - n * interval '1 day' FROM generate_series(1, 20) AS n`)
	w.exec(`INSERT INTO call_attempts (call_id, attempt, cost, claimed_at, finished_at, outcome, queue, task, key, charged)
		SELECT id, 1, 1, now(), finished_at, 'done', 'default', 'http', '', '[]' FROM call_queue`)
	eventually(t, "the sessions that inserted have told the statistics", func() bool {
		return one[int](w, `SELECT count(*) FROM pg_stat_user_tables WHERE relname IN ('call_queue', 'call_attempts') AND n_tup_ins = 20`) == 2
	})
	w.do("maintain", "vacuum")
	tables := decode[[]doctor.Table](t, w.do("maintain", "status", "-o", "json"))
	if len(tables) < 10 {
		t.Errorf("status is %+v", tables)
	}
	for _, table := range tables {
		if table.Name == "call_queue" && (table.LiveRows != 20 || table.LastVacuum == nil || table.Bytes == 0) {
			t.Errorf("call_queue is %+v", table)
		}
	}
	has(t, w.do("maintain", "status"), "LAST VACUUM", "call_attempts")
	got := decode[maintenance.Purged](t, w.do("maintain", "retention", "--dry-run", "-o", "json"))
	if got != (maintenance.Purged{Calls: 14, Attempts: 14}) {
		t.Errorf("a dry run counts %+v", got)
	}
	w.config = "retention: {done: 100d}\n"
	has(t, w.do("maintain", "retention", "--dry-run"), "would remove 0 calls and 0 attempts")
	w.config = ""
	has(t, w.do("maintain", "retention"), "removed 14 calls and 14 attempts")
}

// Calls that no claim would find are found by doctor, counted by a dry run, and mended by a sweep.
func TestSweep(t *testing.T) {
	t.Parallel()
	w, _ := newWorld(t).withRedis()
	w.do("enqueue")
	w.exec(`DELETE FROM callq.call_inbox`)
	w.do("dispatch", "--once")
	if got := w.get("1"); got.Status != "new" {
		t.Fatalf("without its news, the call is %s", got.Status)
	}
	const what = "orphaned_calls"
	counts := func(args ...string) int64 {
		for _, s := range decode[[]recovery.Recovered](t, w.do(append(args, "-o", "json")...)) {
			if s.Kind == what {
				return s.Count
			}
		}
		return -1
	}
	if n := counts("maintain", "sweep", "--dry-run"); n != 1 {
		t.Errorf("a dry run finds %d", n)
	}
	w.do("dispatch", "--once")
	if got := w.get("1"); got.Status != "new" {
		t.Errorf("after a dry run, the call is %s", got.Status)
	}
	if text := w.do("maintain", "sweep"); !strings.Contains(text, "RECOVERED") || !regexp.MustCompile(what+` +1\b`).MatchString(text) {
		t.Error(text)
	}
	w.do("dispatch", "--once")
	if got := w.get("1"); got.Status != "dispatched" {
		t.Errorf("after the sweep, the call is %s", got.Status)
	}
	if n := counts("maintain", "sweep"); n != 0 {
		t.Errorf("a second sweep mends %d", n)
	}
}

// The operator's commands: good use, what is unknown, bad flags, and servers that are away.
func TestOperatorsCommands(t *testing.T) {
	t.Parallel()
	up, _ := newWorld(t).withRedis()
	up.config = "limits: {api: {rate: 100/1h}}\nqueues: {default: {limits: [api]}}\n"
	up.do("dispatch", "--once")
	noRedisWorld := up
	noRedisWorld.redis = noRedis
	away := world{t: t, postgres: noPostgres, redis: up.redis}
	allAway := world{t: t, postgres: noPostgres, redis: noRedis}
	silent := world{t: t, postgres: silentServer(t).url, redis: up.redis}
	refused := up
	refused.postgres = os.Getenv("TEST_DATABASE_URL") + "&dbname=no_such_database"
	unset := world{t: t, postgres: up.postgres}

	runUses(t, []use{
		{"doctor, Postgres away", away, "doctor --timeout 300ms", 5, "problem  postgres reachable"},
		{"doctor, Postgres away, looks at Redis", away, "doctor --timeout 2s", 5, "ok       redis eviction"},
		{"doctor, Postgres silent", silent, "doctor --timeout 300ms", 5, "problem  postgres reachable"},
		{"doctor, no such database", refused, "doctor --timeout 2s", 5, "refused the connection"},
		{"doctor, Redis away", noRedisWorld, "doctor --timeout 2s", 5, "problem  redis reachable"},
		{"doctor, Redis away, looks at Postgres", noRedisWorld, "doctor --timeout 2s", 5, "ok       schema version"},
		{"doctor, both away, as json", allAway, "doctor --timeout 300ms -o json", 5, `"check": "redis reachable"`},
		{"doctor, no Redis configured", unset, "doctor", 2, "REDIS_URL"},
		{"doctor, as lines", up, "doctor -o jsonl", 3, `{"check":"schema version","level":"ok"`},

		{"maintain status", up, "maintain status", 0, "call_queue"},
		{"maintain retention, dry", up, "maintain retention --dry-run", 0, "would remove 0 calls"},
		{"maintain vacuum, dry", up, "maintain vacuum --dry-run", 0, "call_queue"},
		{"maintain vacuum, full, nothing to do", up, "maintain vacuum --full", 0, "MOSTLY UNUSED"},
		{"maintain sweep", up, "maintain sweep", 0, "RECOVERED"},
		{"maintain sweep, dry, as json", up, "maintain sweep --dry-run -o json", 0, `"what": "expired"`},
		{"maintain sweep, Redis away", noRedisWorld, "maintain sweep --timeout 2s", 5, "Redis cannot be reached"},

		{"status, no such database", refused, "status --timeout 2s", 5, "refused the connection"},
		{"status, as lines", up, "status -o jsonl", 0, `"queues":[`},

		{"verify, as lines", up, "verify -o jsonl", 0, `"findings":[]`},

		{"queues pause, of nothing", up, "queues pause default --for 0s", 2, "0s is less than 1ms"},
		{"queues pause, which", up, "queues pause", 2, "accepts 1 arg(s), received 0"},
		{"queues resume, not paused", up, "queues resume default", 0, "as it was"},
	}, nil)
}
