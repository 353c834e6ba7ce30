package sim

import (
	"slices"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/maintenance"
	"github.com/callq/callq/internal/policy"
	"github.com/jackc/pgx/v5"
)

// operators is what operators have done that is in force. A failover may lose the last of it.
type operators struct {
	rules     policy.Policy
	overrides map[string]limit.Rate
	pauses    map[pauseOf]time.Time // until then, on Postgres's clock
}

type pauseOf struct{ what, name, key string }

// operate is something that an operator does, with what the commands do it with.
func (w *world) operate() {
	limits, queues := w.set.rules.Limits, w.set.rules.Queues
	l, q := limits[w.rng.IntN(len(limits))], queues[w.rng.IntN(len(queues))]
	switch what := w.rng.IntN(7); {
	case what < 2:
		w.setLimit(l)
	case what >= 2 && what != 3 && what != 4 && w.saved != nil: // as in setLimit
	case what == 2:
		w.resetLimit(l)
	case what == 3:
		w.pause(ledger.Paused{What: "queue", Name: q.Name, Key: pick(w, append([]string{""}, w.set.keys...)...)})
	case what == 4:
		w.pause(ledger.Paused{What: "limit", Name: l.Name, Key: pick(w, append([]string{"", ""}, w.set.keys...)...)})
	default:
		w.republish()
	}
	w.stir()
}

func (w *world) setLimit(l policy.Limit) {
	if !w.used(l.Name) {
		return
	}
	if w.saved != nil || w.unjudged() { // a raise that a failover loses is outside the promise
		return
	}
	r := l.Rate
	r.Units = max(1, r.Units*int64(w.intBetween(1, 20))/10)
	set := r
	if r.Burst > 0 {
		if was, is := w.overrides[l.Name]; is { // it keeps the burst that is in force
			r.Burst = was.Burst
		}
		r = bucket(w, r.Units, spanOf(l), r.Burst)
		set = limit.Rate{Units: r.Units, Window: spanOf(l)}
	} else if r.Window > 0 && w.chance(0.3) {
		r.Window = w.between(r.Window/2, 2*r.Window)/time.Millisecond*time.Millisecond + time.Millisecond
	}
	if r.Burst == 0 {
		set = r
	}
	w.set.longest = max(w.set.longest, r.Window)
	w.note(0, l.Name, "an operator sets %s", r)
	if w.mutant.noRecall {
		_, err := w.lane.workers.Exec(w.ctx, `UPDATE callq.call_limits SET rate = $2, config = $3 WHERE name = $1`, l.Name, r.Units, l.Rate)
		w.must(err)
		r.Window = l.Rate.Window
	} else if _, err := policy.Override(w.ctx, w.lane.workers, l.Name, set, ledger.By("operator")); err != nil {
		w.must(err)
	}
	w.overrides[l.Name] = r
	w.api.publish()
	w.wake(0.5)
}

func (w *world) resetLimit(l policy.Limit) {
	if !w.used(l.Name) || w.unjudged() {
		return
	}
	w.note(0, l.Name, "an operator resets the limit")
	_, err := policy.Reset(w.ctx, w.lane.workers, l.Name, ledger.By("operator"))
	w.must(err)
	delete(w.overrides, l.Name)
	w.api.publish()
	w.wake(0.5)
}

// used says whether any queue is under the limit.
func (w *world) used(name string) bool {
	return slices.ContainsFunc(w.set.rules.Queues, func(q policy.Queue) bool { return slices.Contains(q.Limits, name) })
}

// republish changes the config and has it read again. What would change how long requests travel is
// left as it was, for some are on their way.
func (w *world) republish() {
	if w.unjudged() {
		return
	}
	rules := policy.Policy{Limits: slices.Clone(w.set.rules.Limits), Queues: slices.Clone(w.set.rules.Queues)}
	l := &rules.Limits[w.rng.IntN(len(rules.Limits))]
	l.Slack, l.SendWithin = w.set.slack([]string{l.Name}), sendWithin(*l)
	switch w.rng.IntN(6) {
	case 0:
		l.Rate.Units = max(1, l.Rate.Units*int64(w.intBetween(3, 20))/10)
		if l.Rate.Burst > 0 {
			l.Rate = bucket(w, l.Rate.Units, spanOf(*l), l.Rate.Burst)
		}
	case 1:
		if l.Rate.Burst > 0 {
			l.Rate = bucket(w, l.Rate.Units, spanOf(*l), max(3, l.Rate.Burst*int64(w.intBetween(3, 20))/10))
			break
		}
		l.Rate.Window = w.between(l.Rate.Window/2, 2*l.Rate.Window).Truncate(time.Millisecond)
	case 2:
		l.PerKey = !l.PerKey
	case 3:
		l.CountCost = !l.CountCost
	case 4:
		q := &rules.Queues[w.rng.IntN(len(rules.Queues))]
		if i := slices.Index(q.Limits, l.Name); i < 0 {
			q.Limits = append(slices.Clone(q.Limits), l.Name)
		} else if len(q.Limits) > 1 {
			q.Limits = slices.Delete(slices.Clone(q.Limits), i, i+1)
		}
	case 5:
		q := &rules.Queues[w.rng.IntN(len(rules.Queues))]
		if q.Hours != "" {
			q.Hours = ""
		} else {
			q.Hours = w.set.drawHours(w)
		}
	}
	w.set.longest = max(w.set.longest, l.Rate.Window)
	w.note(0, l.Name, "an operator changes the file")
	w.publish(rules)
}

func (w *world) publish(rules policy.Policy) {
	w.set.rules = rules
	w.note(0, "", "the rules are %+v", rules)
	_, err := policy.Apply(w.ctx, w.lane.workers, rules, "tester")
	w.must(err)
	w.api.publish()
	w.wake(0.5)
}

// sendWithin is how long a worker may take to send, as docs/design.md has it.
func sendWithin(l policy.Limit) time.Duration {
	if l.SendWithin > 0 {
		return l.SendWithin
	}
	return min(max(spanOf(l)/20, 100*time.Millisecond), 5*time.Second)
}

func (w *world) pause(p ledger.Paused) {
	if p.What == "limit" && !w.used(p.Name) {
		return
	}
	d := w.between(0, 2*w.set.window)
	p.For, p.Reason, p.By = &d, "maintenance", "operator"
	recalled := 0
	if w.mutant.noRecall {
		_, err := w.lane.workers.Exec(w.ctx, `INSERT INTO callq.call_pauses VALUES ($1, $2, $3, clock_timestamp() + $4::interval, '', clock_timestamp(), '')
			ON CONFLICT (what, name, key) DO UPDATE SET until = excluded.until`, p.What, p.Name, p.Key, d)
		w.must(err)
	} else {
		var err error
		recalled, err = ledger.Pause(w.ctx, w.lane.workers, p)
		w.must(err)
	}
	w.pauses[pauseOf{p.What, p.Name, p.Key}] = w.postgres().Add(d)
	w.learnDoors(pauseOf{p.What, p.Name, p.Key})
	w.note(0, p.Name, "an operator pauses %s, key %q, for %s; %d recalled", p.What, p.Key, d, recalled)
	if w.chance(0.5) {
		w.after(w.between(0, d), func() { w.resume(p) })
	}
	w.after(d, w.stir)
}

func (w *world) resume(p ledger.Paused) {
	if p.What == "limit" && !w.used(p.Name) {
		return
	}
	was, err := ledger.Resume(w.ctx, w.lane.workers, p.What, p.Name, p.Key, ledger.By("operator"))
	w.must(err)
	delete(w.pauses, pauseOf{p.What, p.Name, p.Key})
	delete(w.doors, pauseOf{p.What, p.Name, p.Key})
	w.note(0, p.Name, "an operator resumes %s, key %q: %t", p.What, p.Key, was)
	w.wake(0.5)
	w.stir()
}

// paused says whether operators have paused what a request would use.
func (w *world) paused(r *request) bool {
	for p, until := range w.pauses {
		of := p.what == "queue" && p.name == r.queue || p.what == "limit" && slices.Contains(r.limits, p.name)
		if of && (p.key == "" || p.key == r.key) && until.After(w.postgres()) {
			return true
		}
	}
	return false
}

// resumeAll undoes what would keep calls waiting for good.
func (w *world) resumeAll() {
	_, err := policy.EnterEpoch(w.ctx, w.lane.workers, policy.Strict, 0) // nothing is applied before
	w.must(err)
	_, err = w.lane.workers.Exec(w.ctx, `DELETE FROM callq.call_pauses`)
	w.must(err)
	clear(w.pauses)
	clear(w.doors)
	for _, l := range w.set.rules.Limits {
		w.resetLimit(l)
	}
	w.openAll()
	w.stir()
}

// cancelCalls cancels some calls, mostly such as are under way.
func (w *world) cancelCalls() {
	ids := w.some(`SELECT call_id FROM callq.call_open ORDER BY call_id`, pick(w, 0.1, 0.5, 1))
	ids = append(ids, w.some(`SELECT id FROM call_queue ORDER BY id`, pick(w, 0, 0, 0.05, 0.2))...)
	client, err := callqueue.New(w.lane.workers)
	w.must(err)
	list, err := client.Cancel(w.ctx, ids...)
	w.must(err)
	for _, done := range list {
		w.note(done.ID, "", "an operator cancels: %+v", done)
		c := w.calls[done.ID]
		if !done.Changed {
			continue
		}
		c.cancelled, c.given = true, true
		for _, k := range w.workers { // tasks/running.go asks every 2 s
			for _, a := range k.running {
				if a.CallID == done.ID && done.Open {
					a.do(w.between(0, 2*time.Second), a.hearCancel)
				}
			}
		}
	}
	w.stir()
}

// some draws a share of the ids that a statement finds, of calls that are there.
func (w *world) some(sql string, share float64) []int64 {
	rows, err := w.lane.workers.Query(w.ctx, sql)
	w.must(err)
	all, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	w.must(err)
	ids := []int64{}
	for _, id := range all {
		if w.chance(share) && !w.calls[id].gone {
			ids = append(ids, id)
		}
	}
	return ids
}

// deleteCalls deletes some calls, whatever becomes of them.
func (w *world) deleteCalls() {
	share := pick(w, 0.05, 0.2, 0.5)
	ids := w.some(pick(w, `SELECT id FROM call_queue WHERE status <> 'new' ORDER BY id`, `SELECT id FROM call_queue ORDER BY id`), share)
	for _, id := range ids {
		w.calls[id].gone = true
		w.note(id, "", "is deleted")
	}
	_, err := w.lane.workers.Exec(w.ctx, `DELETE FROM call_queue WHERE id = ANY($1)`, ids)
	w.must(err)
}

// retain retires calls that ended some time ago. Of others it must take none.
func (w *world) retain() {
	keep := w.between(time.Second, pick(w, 2*w.set.window, w.set.span/2))
	w.note(0, "", "retention of %s", keep)
	before := w.readCalls()
	_, err := maintenance.Purge(w.ctx, w.lane.workers, maintenance.Retention{Done: keep, Failed: keep, Cancelled: keep})
	w.must(err)
	w.mutant.retained(w)
	after := w.readCalls()
	for _, row := range before {
		if after[row.ID] != nil {
			continue
		}
		w.calls[row.ID].gone = true
		if !final(row.Status) {
			w.fail("nothing vanishes", row.ID, "", "retention removed call %d, which was %s", row.ID, row.Status)
		}
	}
}
