package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/callq/callq/internal/handoff"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/schema"
	"github.com/callq/callq/internal/witness"
	"github.com/jackc/pgx/v5"
)

// worker does what package tasks does, with the same statements and the same bounds, in events: it
// freezes and dies between any two.
type worker struct {
	w      *world
	n      int
	id     string
	pool   string
	tasks  []string
	slots  int
	life   int // what an earlier one had planned is not done
	dead   bool
	frozen time.Duration // until then
	// stoodStill is when it froze or died: what beat until then looks alive for a while.
	stoodStill time.Duration

	taking   bool
	messages int // taken and not settled
	busy     int // slots in use
	waiting  []*attempt
	running  []*attempt // that have a slot
	starts   lane1[*attempt]
	closes   lane1[*recording]
	closer   ledger.Closer
	witness  *witness.Witness
	epoch    string       // in which it last spoke
	ended    []*recording // that had begun, the last 50
	beatAt   time.Duration
	arrivals arrivals
}

func (w *world) startWorkers() {
	for i := range w.set.workers {
		k := &worker{w: w, n: i, tasks: []string{"http"}, slots: w.set.slots}
		if w.set.own && i%2 == 0 {
			k.tasks = []string{"http", "own"}
		}
		k.pool = handoff.Pool(k.tasks, nil)
		w.workers = append(w.workers, k)
		k.start()
	}
}

func (k *worker) start() {
	k.life++
	k.dead, k.taking, k.messages, k.busy, k.waiting, k.beatAt = false, false, 0, 0, nil, -1
	k.running, k.witness, k.epoch, k.ended = nil, &witness.Witness{}, "", nil
	k.starts, k.closes, k.arrivals = lane1[*attempt]{}, lane1[*recording]{}, arrivals{}
	k.id = fmt.Sprintf("w%d.%d", k.n, k.life)
	k.w.note(0, "", "worker %s starts", k.id)
	k.takeIn(k.w.between(0, time.Second))
	k.w.stir()
}

// do plans what the worker does after d; later if it is frozen by then, never if it has died.
func (k *worker) do(d time.Duration, act func()) {
	life := k.life
	var try func()
	try = func() {
		switch {
		case life != k.life:
		case k.frozen > k.w.now:
			k.w.at(k.frozen, try)
		default:
			act()
		}
	}
	k.w.after(d, try)
}

// hazard is where a worker may freeze or die: between any two steps.
func (k *worker) hazard() (died bool) {
	switch {
	case k.w.fault(0.002):
		k.freeze(k.w.freezing())
	case k.w.fault(0.002):
		k.die()
		return true
	}
	return false
}

func (k *worker) freeze(d time.Duration) {
	if k.frozen <= k.w.now {
		k.stoodStill = k.w.now
	}
	k.frozen = max(k.frozen, k.w.now+d)
	if !k.w.healing {
		k.frozen = min(k.frozen, max(k.w.set.span, k.w.now))
	}
	k.w.note(0, "", "worker %s freezes until %s", k.id, k.frozen)
}

func (k *worker) die() {
	k.w.note(0, "", "worker %s dies", k.id)
	if k.frozen <= k.w.now {
		k.stoodStill = k.w.now
	}
	k.life++
	k.dead = true
	k.w.after(k.w.between(0, 20*time.Second), k.start)
}

// beat writes the beats that are due before the dispatchers look, or before a failover. tasks/worker.go: every 2 s.
func (w *world) beat() {
	var ids, pools, tasks []string
	var slots []int
	var ago []time.Duration
	for _, k := range w.workers {
		at := w.now
		if k.dead || k.frozen > w.now {
			at = k.stoodStill
		}
		at = at / (2 * time.Second) * (2 * time.Second)
		if k.beatAt >= at {
			continue
		}
		k.beatAt = at
		if !k.dead && k.frozen <= w.now && (k.epoch != w.lane.epoch || w.chance(0.1)) {
			spoke, err := k.witness.Heartbeat(w.ctx, schema.Names{}.In(w.lane.workers), witness.Row{ID: k.id, Pool: k.pool, Tasks: k.tasks, Slots: k.slots})
			w.must(err)
			k.epoch = w.lane.epoch
			if spoke {
				k.vouch()
			}
			continue
		}
		ids, pools, ago = append(ids, k.id), append(pools, k.pool), append(ago, w.now-at)
		tasks, slots = append(tasks, strings.Join(k.tasks, ",")), append(slots, k.slots)
	}
	if len(ids) > 0 {
		_, err := w.lane.dispatchers.Exec(w.ctx, beatSQL, ids, pools, tasks, slots, ago)
		w.must(err)
	}
}

// vouch says what the worker runs and has ended, and records again how that ended: tasks/vouch.go.
func (k *worker) vouch() {
	var attempts []ledger.Vouched
	add := func(a *attempt, within time.Duration) {
		if !a.startedAt.IsZero() {
			attempts = append(attempts, ledger.Vouched{CallID: a.CallID, Attempt: a.Attempt, Token: a.token, StartedAt: a.startedAt, Within: within})
		}
	}
	for _, a := range k.running {
		add(a, a.Timeout+time.Second)
	}
	for _, r := range k.ended {
		add(r.a, time.Minute)
	}
	vouched, err := ledger.Vouch(k.w.ctx, k.w.lane.workers, k.id, attempts)
	k.w.must(err)
	k.w.note(0, "", "worker %s vouches for %v", k.id, vouched)
	for _, r := range k.ended {
		if slices.Contains(vouched, r.c.CallID) {
			k.tryRecord(&recording{a: r.a, c: r.c, wait: 20 * time.Millisecond, again: true})
		}
	}
}

const beatSQL = `
INSERT INTO callq.call_workers (id, pool, tasks, labels, slots, started_at, heartbeat_at, epoch)
SELECT id, pool, string_to_array(tasks, ','), '{}', slots, clock_timestamp(), clock_timestamp() - ago, callq.epoch()
FROM unnest($1::text[], $2::text[], $3::text[], $4::int[], $5::interval[]) AS w (id, pool, tasks, slots, ago)
ON CONFLICT (id) DO UPDATE SET heartbeat_at = excluded.heartbeat_at, slots = excluded.slots`

// takeIn looks into Redis after d.
func (k *worker) takeIn(d time.Duration) {
	if k.taking || k.dead {
		return
	}
	k.taking = true
	k.do(d, func() {
		k.taking = false
		k.take()
	})
}

// take takes a message, if it has a place for one. It may get lost, come late or twice.
func (k *worker) take() {
	w := k.w
	if places := min(max(k.slots/32, 2), 32); k.messages >= places || w.redisDown {
		return
	}
	message, ok, err := w.lane.take(k.pool)
	w.must(err)
	if !ok {
		return
	}
	k.takeIn(w.between(0, 2*time.Millisecond))
	if k.hazard() {
		return
	}
	if w.fault(w.set.loss) {
		w.note(0, "", "message of %v is lost", message.Attempts)
		return
	}
	if w.fault(w.set.loss) || w.mutant.oneToken && message.Run {
		other, in := pick(w, w.workers...), w.between(0, pick(w, 10*time.Millisecond, time.Second, time.Minute, w.set.window))
		w.note(0, "", "message of %v will be repeated", message.Attempts)
		w.after(in, func() {
			if !other.dead {
				other.do(0, func() { other.deliver(message) })
			}
		})
	}
	d := w.between(0, 5*time.Millisecond)
	if w.fault(w.set.loss) {
		d = w.between(0, pick(w, time.Second, 40*time.Second, w.set.window))
	}
	k.messages++
	k.do(d, func() { k.deliver(message); k.messages--; k.takeIn(time.Millisecond) })
}

// loaded is what tasks/attempt.go reads of an attempt.
type loaded struct {
	CallID      int64         `db:"call_id"`
	Attempt     int32         `db:"attempt"`
	Queue       string        `db:"queue"`
	Task        string        `db:"task"`
	Key         string        `db:"key"`
	Cost        int64         `db:"cost"`
	Gone        bool          `db:"gone"`
	Expired     bool          `db:"expired"`
	FailedCount int           `db:"failed_count"`
	MaxAttempts int           `db:"max_attempts"`
	BackoffMin  time.Duration `db:"backoff_min"`
	BackoffMax  time.Duration `db:"backoff_max"`
	Timeout     time.Duration `db:"timeout"`
	Limits      []string      `db:"limits"`
	Keys        []string      `db:"keys"`
	Costs       []int64       `db:"costs"`
	Epoch       string        `db:"epoch"`
	notBefore   time.Duration
}

const loadSQL = `
SELECT o.call_id, o.attempt, o.queue, o.task, o.key, o.cost, q.id IS NULL AS gone,
    coalesce(q.expires_at <= clock_timestamp(), false) AS expired,
    coalesce(q.failed_count, 0) AS failed_count, coalesce(q.max_attempts, r.max_attempts, 3) AS max_attempts,
    coalesce(r.backoff_min, '10 seconds') AS backoff_min, coalesce(r.backoff_max, '15 minutes') AS backoff_max,
    coalesce(r.timeout, '30 seconds') AS timeout, o.limits, o.keys, o.costs, o.epoch
FROM unnest($1::bigint[], $2::int[]) AS a (call_id, attempt)
JOIN callq.call_open o ON o.call_id = a.call_id AND o.attempt = a.attempt
LEFT JOIN call_queue q ON q.id = o.call_id AND q.attempts = o.attempt AND q.status = 'dispatched'
LEFT JOIN callq.call_queues r ON r.name = o.queue
WHERE o.started_at IS NULL OR $3
ORDER BY o.call_id`

// deliver runs what is still open and unstarted of a message. What a handler of one's own needs comes with
// the start's answer.
func (k *worker) deliver(message handoff.Message) {
	if message.Run {
		k.deliverRun(message)
		return
	}
	if k.loads(message.Task) {
		k.load(message.Attempts)
	} else {
		for _, r := range message.Attempts {
			k.wait(loaded{CallID: r.CallID, Attempt: r.Attempt, Task: message.Task, notBefore: k.w.now + r.Wait})
		}
	}
	k.fillSlots()
}

func (k *worker) loads(task string) bool { return task == "http" || k.w.mutant.secondSend }

func (k *worker) load(refs []handoff.Ref) {
	ids, attempts, notBefore := make([]int64, len(refs)), make([]int32, len(refs)), map[int64]time.Duration{}
	for i, r := range refs {
		ids[i], attempts[i], notBefore[r.CallID] = r.CallID, r.Attempt, k.w.now+r.Wait
	}
	rows, err := k.w.lane.workers.Query(k.w.ctx, loadSQL, ids, attempts, k.w.mutant.secondSend)
	k.w.must(err)
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[loaded])
	k.w.must(err)
	for _, row := range list {
		row.notBefore = notBefore[row.CallID]
		k.wait(row)
	}
}

// wait has an attempt wait for a slot, unless its call cannot be made.
func (k *worker) wait(row loaded) {
	a := &attempt{k: k, life: k.life, loaded: row, token: k.w.rng.Int64() | 1, of: k.w.calls[row.CallID]}
	k.w.note(row.CallID, "", "attempt %d comes to %s", row.Attempt, k.id)
	switch {
	case row.Gone:
		k.record(a, a.unsent("its call is gone", 0))
	case row.Expired:
		k.record(a, a.expired())
	default:
		k.waiting = append(k.waiting, a)
	}
}

// fillSlots lets attempts run that wait for a slot.
func (k *worker) fillSlots() {
	for k.busy < k.slots && len(k.waiting) > 0 {
		a := k.waiting[0]
		k.waiting = slices.Delete(k.waiting, 0, 1)
		k.busy++
		a.slot = true
		k.running = append(k.running, a)
		k.do(0, a.run)
	}
}

func (a *attempt) policy() ledger.Policy {
	return ledger.Policy{MaxAttempts: a.MaxAttempts, BackoffMin: a.BackoffMin, BackoffMax: a.BackoffMax}
}
