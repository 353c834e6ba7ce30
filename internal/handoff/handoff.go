// Package handoff carries attempts from the dispatchers to the workers through Asynq: one Asynq queue a
// pool, several attempts an Asynq task, ids only.
//
// It only promises speed. An Asynq task may be lost, alone or with a worker, repeated, or run by hand: the ledger decides
// what runs, and recovery sends again what no worker started. So Asynq neither retries nor keeps anything, and Tidy removes what it
// archives.
package handoff

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/callq/callq/internal/limit"
	"github.com/hibiken/asynq"
	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
)

// Message is some attempts of one claim and one task, for one pool: what an Asynq task carries.
type Message struct {
	Pool     string
	ID       string // the Asynq task's
	Task     string // "": the ledger has it
	Attempts []Ref
	Run      bool // one worker keeps all of them to the paces that the ledger has
}

// ID is the id of a claim's n-th message, sent for the redeliveries-th time.
func ID(epoch string, batch int64, n, redeliveries int32) string {
	return fmt.Sprintf("%s-%d-%d-%d", epoch, batch, n, redeliveries)
}

// Ref names one attempt of one call.
type Ref struct {
	CallID  int64
	Attempt int32
	Wait    time.Duration // how long after its delivery it may be made; limit.AheadMost at most
}

// prefix begins the name of each of callq's Asynq queues, and the type of each of its Asynq tasks.
const prefix = "callq:"

// asynqTask is the message as Asynq carries it: each attempt's call, number and wait in microseconds, one after the other, since
// plain numbers cost a fifth of what objects would. It is never retried, nor kept: the ledger is what knows of attempts. Its
// timeout, which Asynq wants, is longer than a delivery may wait for slots.
func (m Message) asynqTask(queue string) *asynq.Task {
	var numbers []int64
	for _, r := range m.Attempts {
		numbers = append(numbers, r.CallID, int64(r.Attempt), r.Wait.Microseconds())
	}
	var content any = numbers
	if m.Run {
		content = asynqRun{numbers}
	}
	payload, _ := json.Marshal(content) // numbers always can
	return asynq.NewTask(prefix+m.Task, payload, asynq.Queue(queue), asynq.TaskID(m.ID),
		asynq.MaxRetry(0), asynq.Retention(0), asynq.Timeout(24*time.Hour))
}

// asynqRun is what a run's message holds.
type asynqRun struct {
	Run []int64 `json:"run"`
}

// Read reads the message that an Asynq task carries.
func Read(pool string, t *asynq.Task) (Message, error) {
	var numbers []int64
	var run asynqRun
	err := json.Unmarshal(t.Payload(), &numbers)
	if err != nil && json.Unmarshal(t.Payload(), &run) == nil {
		numbers, err = run.Run, nil
	}
	if err != nil {
		return Message{}, fmt.Errorf("read Asynq task: %w", err)
	}
	m := Message{Pool: pool, Task: strings.TrimPrefix(t.Type(), prefix), Run: run.Run != nil}
	for ; len(numbers) >= 3; numbers = numbers[3:] {
		if n := numbers[1]; n > 0 && n <= math.MaxInt32 { // else no attempt has it
			wait := max(0, min(numbers[2], limit.AheadMost.Microseconds())) // Redis can hold nothing up
			m.Attempts = append(m.Attempts, Ref{numbers[0], int32(n), time.Duration(wait) * time.Microsecond})
		}
	}
	return m, nil
}

// Broker is the Redis that a database's attempts go through. What does not get through stays open in Postgres, and recovery
// sends it again. It is safe for concurrent use, but for Deliver, Reachable and Beside: these are the dispatcher's.
type Broker struct {
	DB     DB // has the id that queues of this database carry
	client redis.UniversalClient
	log    *slog.Logger
	mu     sync.Mutex // of Open
	id     string     // of the database, whose queues are its own; several callqs may share a Redis. "": not asked for yet
	away   bool       // Redis did not take what was last delivered
	left   string     // what Beside left in Redis
}

// DB runs statements.
type DB interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// New makes a Broker, which opens when it is first used.
func New(client redis.UniversalClient, db DB, log *slog.Logger) *Broker {
	return &Broker{DB: db, client: client, log: log}
}

// Open learns which queues are the database's, if that is not known yet.
func (b *Broker) Open(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.id != "" {
		return nil
	}
	var drawn, oid, server int64
	if err := b.DB.QueryRow(ctx, databaseSQL, rand.Int64N(1<<40)).Scan(&drawn, &oid, &server); err != nil {
		return fmt.Errorf("read the database's id: %w", err)
	}
	h := fnv.New64a()
	fmt.Fprintf(h, "%d %d %d", drawn, oid, server)
	b.id = strconv.FormatUint(h.Sum64(), 36)
	return nil
}

// A number is drawn once, by the first that asks, and stays with the data. A copy of the data has it, too, and so may the number of its
// database, but hardly both and the server's.
const databaseSQL = `
INSERT INTO callq.call_meta (name, position) VALUES ('database', $1)
ON CONFLICT (name) DO UPDATE SET position = call_meta.position
RETURNING position, (SELECT oid::bigint FROM pg_database WHERE datname = current_database()),
    (SELECT system_identifier FROM pg_control_system())`

// Queue is the name of a pool's Asynq queue.
func (b *Broker) Queue(pool string) string { return b.prefix() + pool }

func (b *Broker) prefix() string { return prefix + b.Database() + ":" }

// Database is the id of the database, which no other has, nor a copy of it, but that of a whole server's files.
func (b *Broker) Database() string { return b.id }

// What Asynq calls what it keeps in Redis: its queues, and the parts of each. A test goes red where an upgrade changes that.
const queuesKey = "asynq:queues"

func keyOf(queue, part string) string { return "asynq:{" + queue + "}:" + part }

// HTTP is the pool of workers that handle just the task http and have no labels, and the name of that task.
const HTTP = "http"

// Pool names the pool of the workers that handle these tasks and carry these labels.
func Pool(tasks, labels []string) string {
	tasks, labels = slices.Sorted(slices.Values(tasks)), slices.Sorted(slices.Values(labels))
	if len(labels) == 0 && slices.Equal(tasks, []string{HTTP}) {
		return HTTP
	}
	sum := sha256.Sum256([]byte(strings.Join(tasks, "\x00") + "\x01" + strings.Join(labels, "\x00")))
	return hex.EncodeToString(sum[:6])
}

// Send hands messages over, in one round trip. After an error they may have arrived all the same. A message whose id is there
// already is not sent again.
func (b *Broker) Send(ctx context.Context, messages ...Message) error {
	if len(messages) == 0 {
		return nil
	}
	ctx, end, err := b.begin(ctx)
	defer end()
	if err != nil {
		return err
	}
	collected := &batch{UniversalClient: b.client, pipe: b.client.Pipeline()}
	var answers []redis.Cmder
	if err = b.enqueue(ctx, collected, messages); err == nil {
		answers, err = collected.pipe.Exec(ctx)
	}
	if slices.ContainsFunc(answers, func(c redis.Cmder) bool { return redis.HasErrorPrefix(c.Err(), "NOSCRIPT") }) {
		err = b.enqueue(ctx, b.client, messages) // to a Redis that is new Asynq sends its script, too
	}
	if err != nil {
		return fmt.Errorf("send %d Asynq tasks: %w", len(messages), err)
	}
	return nil
}

// enqueue makes a new asynq.Client each time: a client announces a queue only once, and not again after Redis was emptied.
func (b *Broker) enqueue(ctx context.Context, to redis.UniversalClient, messages []Message) error {
	client := asynq.NewClientFromRedisClient(to)
	for _, m := range messages {
		_, err := client.EnqueueContext(ctx, m.asynqTask(b.Queue(m.Pool)))
		if err != nil && !errors.Is(err, asynq.ErrTaskIDConflict) {
			return err
		}
	}
	return nil
}

// batch collects what an asynq.Client sends into one pipeline. One at a time, 16 tasks take six times as long.
type batch struct {
	redis.UniversalClient
	pipe redis.Pipeliner
}

// SAdd announces a queue.
func (b *batch) SAdd(ctx context.Context, key string, members ...any) *redis.IntCmd {
	return b.pipe.SAdd(ctx, key, members...)
}

// EvalSha enqueues a task. It answers at once as if all were well; the pipeline gets Redis's answer.
func (b *batch) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	b.pipe.EvalSha(ctx, sha, keys, args...)
	return redis.NewCmdResult(int64(1), nil)
}

// Pending returns the ids of the messages that no worker has yet; dispatchers keep them to what workers can begin soon.
// (Asynq's Inspector lists them by pages, and misses some if others leave meanwhile.)
func (b *Broker) Pending(ctx context.Context, pool string) ([]string, error) {
	ctx, end, err := b.begin(ctx)
	defer end()
	if err != nil {
		return nil, err
	}
	return b.client.LRange(ctx, keyOf(b.Queue(pool), "pending"), 0, -1).Result()
}

// Timeout bounds each exchange with Redis.
const Timeout = 2 * time.Second

// begin opens the Broker for one exchange with Redis, whose context it returns.
func (b *Broker) begin(ctx context.Context) (context.Context, context.CancelFunc, error) {
	err := b.Open(ctx)
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	return ctx, cancel, err
}

// Deliver sends what a claim opened. A failure is left to recovery: it is only logged.
func (b *Broker) Deliver(ctx context.Context, messages []Message) {
	if err := b.Send(ctx, messages...); err != nil {
		b.away = true
		b.log.WarnContext(ctx, "hand-over waits for Redis", "err", err)
	}
}

// Reachable reports whether Redis took what was last handed over, or would take it again.
func (b *Broker) Reachable(ctx context.Context) bool {
	if !b.away {
		return true
	}
	if b.Probe(ctx) != nil {
		return false
	}
	b.away = false
	b.log.InfoContext(ctx, "Redis is back")
	return true
}

// Probe asks Redis for what a hand-over needs: a script that writes, on the node where attempts go. One that is full, has lost that
// part of a cluster or allows no scripts answers a PING all the same.
func (b *Broker) Probe(ctx context.Context) error {
	ctx, end, err := b.begin(ctx)
	defer end()
	if err != nil {
		return err
	}
	return Probe(ctx, b.client, b.Queue(HTTP))
}

// Probe has a script write a key where an Asynq queue has its own. Redis removes it after a second.
func Probe(ctx context.Context, client redis.UniversalClient, queue string) error {
	return client.Eval(ctx, `return redis.call('SET', KEYS[1], '', 'PX', 1000)`, []string{keyOf(queue, "probe")}).Err()
}

// besideKept is how long Redis keeps what Beside leaves: longer than dispatchers are idle.
const besideKept = 24 * time.Hour

// Beside reports whether another server hands over calls of a database with this id: a copy of its files that runs beside it. Each
// leaves the mark of the run of its server in Redis. After a restart or a failover a new mark follows the old one, for good; only
// a server beside this one comes between two equal marks.
func (b *Broker) Beside(ctx context.Context, mark string) (bool, error) {
	ctx, end, err := b.begin(ctx)
	defer end()
	if err != nil {
		return false, err
	}
	found, err := b.client.SetArgs(ctx, keyOf(b.prefix(), "server"), mark, redis.SetArgs{Get: true, TTL: besideKept}).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return false, fmt.Errorf("leave the server's mark: %w", err)
	}
	beside := err == nil && b.left == mark && found != mark
	b.left = mark
	return beside, nil
}

// Tidy removes what Asynq keeps without need: archived tasks (of workers that died, or cancelled in Asynqmon), active ones whose lease
// has long expired, and the queues of all pools but these. It returns how many it removed.
func (b *Broker) Tidy(ctx context.Context, pools []string) (int, error) {
	ctx, end, err := b.begin(ctx)
	defer end()
	if err != nil {
		return 0, err
	}
	queues, err := b.client.SMembers(ctx, queuesKey).Result()
	if err != nil {
		return 0, fmt.Errorf("list Asynq queues: %w", err)
	}
	tidied := 0
	for _, queue := range queues {
		pool, ours := strings.CutPrefix(queue, b.prefix())
		if !ours {
			continue
		}
		n, err := b.tidy(ctx, queue, slices.Contains(pools, pool))
		if err != nil {
			return tidied, fmt.Errorf("tidy Asynq queue %s: %w", queue, err)
		}
		tidied += n
	}
	return tidied, nil
}

// tidy removes a queue, or only what is left of tasks in one that is used. Its servers archive what a worker that died had, unless
// they meet something that is not Asynq's: there they stop, each time.
func (b *Broker) tidy(ctx context.Context, queue string, used bool) (int, error) {
	if used {
		n, err := asynq.NewInspectorFromRedisClient(b.client).DeleteAllArchivedTasks(queue)
		if err == nil {
			expired, err := b.client.Eval(ctx, expiredLua, []string{keyOf(queue, "lease"), keyOf(queue, "active")},
				time.Now().Add(-expiredFor).Unix(), keyOf(queue, "t:")).Int()
			return n + expired, err
		}
		if known, asked := b.client.SIsMember(ctx, queuesKey, queue).Result(); asked == nil && !known {
			return 0, nil // another dispatcher, which did not yet know of its worker, has just removed it
		}
		return 0, err
	}
	key := func(part string) string { return keyOf(queue, part) }
	var pending, active, archived *redis.StringSliceCmd
	if _, err := b.client.TxPipelined(ctx, func(tx redis.Pipeliner) error {
		pending, active = tx.LRange(ctx, key("pending"), 0, -1), tx.LRange(ctx, key("active"), 0, -1)
		archived = tx.ZRange(ctx, key("archived"), 0, -1)
		return nil
	}); err != nil {
		return 0, err
	}
	ids := slices.Concat(pending.Val(), active.Val(), archived.Val())
	keys := []string{key("pending"), key("active"), key("lease"), key("archived"), key("processed"), key("failed"), key("paused")}
	for _, id := range ids {
		keys = append(keys, key("t:"+id))
	}
	if err := b.client.Del(ctx, keys...).Err(); err != nil {
		return 0, err
	}
	return len(ids) + 1, b.client.SRem(ctx, queuesKey, queue).Err()
}

// expiredFor is how long a lease has expired before its task is removed. Asynq archives such tasks within 90 s.
const expiredFor = 3 * time.Minute

// A worker that lives after all goes on: the ledger decides what runs.
const expiredLua = `
local ids = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, 1000)
for _, id in ipairs(ids) do
    redis.call('ZREM', KEYS[1], id)
    redis.call('LREM', KEYS[2], 0, id)
    redis.call('DEL', ARGV[2] .. id)
end
return #ids`
