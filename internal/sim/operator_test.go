package sim

import (
	"time"

	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/ledger"
	"github.com/jackc/pgx/v5"
)

// operate is something that an operator does, with what the commands do it with.
func (w *world) operate() {
	limits, queues := w.set.rules.Limits, w.set.rules.Queues
	l, q := limits[w.rng.IntN(len(limits))], queues[w.rng.IntN(len(queues))]
	switch w.rng.IntN(5) {
	case 0, 1:
		w.setLimit(l)
	case 2:
		w.resetLimit(l)
	case 3:
		w.pause(ledger.Paused{What: "queue", Name: q.Name, Key: pick(w, append([]string{""}, w.set.keys...)...)})
	case 4:
		w.pause(ledger.Paused{What: "limit", Name: l.Name})
	}
}

func (w *world) setLimit(l dispatcher.LimitRule) {
	r := l.Rate
	r.Units = max(1, r.Units*int64(w.intBetween(1, 20))/10)
	if r.Window > 0 && w.chance(0.3) {
		r.Window = w.between(r.Window/2, 2*r.Window)/time.Millisecond*time.Millisecond + time.Millisecond
	}
	w.set.longest = max(w.set.longest, r.Window)
	w.note(0, l.Name, "an operator sets %s", r)
	if w.mutant.noRecall {
		_, err := w.lane.workers.Exec(w.ctx, `UPDATE call_limits SET rate = $2, config_rate = rate, config_window = window_size WHERE name = $1`, l.Name, r.Units)
		w.must(err)
		r.Window = l.Rate.Window
	} else if _, err := dispatcher.SetLimit(w.ctx, w.lane.workers, l.Name, r, "operator"); err != nil {
		w.must(err)
	}
	w.api.inForce(l.Name, rateVersion{r.Units, r.Window})
	w.wake()
}

func (w *world) resetLimit(l dispatcher.LimitRule) {
	w.note(0, l.Name, "an operator resets the limit")
	_, err := dispatcher.ResetLimit(w.ctx, w.lane.workers, l.Name, "operator")
	w.must(err)
	w.api.inForce(l.Name, rateVersion{l.Rate.Units, l.Rate.Window})
	w.wake()
}

func (w *world) pause(p ledger.Paused) {
	d := w.between(0, 2*w.set.window)
	p.For, p.Reason, p.By = &d, "maintenance", "operator"
	recalled, err := ledger.Pause(w.ctx, w.lane.workers, p)
	w.must(err)
	w.note(0, p.Name, "an operator pauses %s, key %q, for %s; %d recalled", p.What, p.Key, d, recalled)
	if w.chance(0.5) {
		w.after(w.between(0, d), func() { w.resume(p) })
	}
}

func (w *world) resume(p ledger.Paused) {
	was, err := ledger.Resume(w.ctx, w.lane.workers, p.What, p.Name, p.Key, "operator")
	w.must(err)
	w.note(0, p.Name, "an operator resumes %s, key %q: %t", p.What, p.Key, was)
	w.wake()
}

// resumeAll undoes what would keep calls waiting for good.
func (w *world) resumeAll() {
	_, err := w.lane.workers.Exec(w.ctx, `DELETE FROM call_pauses`)
	w.must(err)
	for _, l := range w.set.rules.Limits {
		w.resetLimit(l)
	}
}

// deleteCalls deletes some calls, whatever becomes of them.
func (w *world) deleteCalls() {
	rows, err := w.lane.workers.Query(w.ctx, `SELECT id FROM call_queue WHERE status <> 'new' OR $1 ORDER BY id`, w.chance(0.3))
	w.must(err)
	all, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	w.must(err)
	ids, share := []int64{}, pick(w, 0.05, 0.2, 0.5)
	for _, id := range all {
		if w.chance(share) {
			ids = append(ids, id)
			w.calls[id].gone = true
			w.note(id, "", "is deleted")
		}
	}
	_, err = w.lane.workers.Exec(w.ctx, `DELETE FROM call_queue WHERE id = ANY($1)`, ids)
	w.must(err)
}

// retain retires calls that ended some windows ago. Of others it must take none.
func (w *world) retain() {
	keep := w.between(time.Second, 2*w.set.window)
	w.note(0, "", "retention of %s", keep)
	before := w.readCalls()
	_, err := dispatcher.Retain(w.ctx, w.lane.workers, dispatcher.Retention{Done: keep, Failed: keep, Cancelled: keep})
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
