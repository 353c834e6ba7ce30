package sim

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// probeFor is how long others wait for a probe, as docs/design.md has it.
const probeFor = 2 * time.Second

// opened is an open attempt.
type opened struct {
	CallID    int64
	Attempt   int32
	Key       string
	Limits    []string
	ClaimedAt time.Time
}

func (w *world) readOpen() map[callAttempt]opened {
	rows, err := w.lane.workers.Query(w.ctx, `SELECT call_id, attempt, key, limits, claimed_at FROM callq.call_open`)
	w.must(err)
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[opened])
	w.must(err)
	open := map[callAttempt]opened{}
	for _, o := range list {
		open[callAttempt{o.CallID, o.Attempt}] = o
	}
	return open
}

// watch holds what a dispatcher claims against what is closed: one probe goes before the others. It knows from the world's own record
// what is closed, and which attempt is the probe.
func (w *world) watch(claims func()) {
	if len(w.doors) == 0 {
		claims()
		return
	}
	before := w.readOpen()
	claims()
	after := w.readOpen()
	for _, of := range slices.SortedFunc(maps.Keys(w.doors), func(a, b pauseOf) int {
		return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.key, b.key))
	}) {
		d := w.doors[of]
		_, waits := before[d.probe]
		if waits { // a dispatcher finds it to be lost before it claims
			_, waits = after[d.probe]
		}
		most := w.mayClaim(d, waits)
		var claimed []callAttempt
		for id, o := range after {
			if _, was := before[id]; !was && slices.Contains(o.Limits, of.name) && (of.key == "" || of.key == o.Key) {
				claimed = append(claimed, id)
			}
		}
		switch {
		case len(claimed) > most:
			w.fail("one probe goes before the others", 0, of.name, "%d attempts were claimed for key %q, at most %d may be: %v, %+v, now %s",
				len(claimed), of.key, most, claimed, *d, w.shown())
		case most == math.MaxInt && !waits: // its probe had an answer
			delete(w.doors, of)
		case most == 1 && len(claimed) == 1:
			d.probe, d.probedAt = claimed[0], after[claimed[0]].ClaimedAt
			w.note(d.probe.call, of.name, "attempt %d is the probe", d.probe.attempt)
		}
	}
}

// mayClaim is how many attempts may be claimed at present of what a refusal has closed, whose probe may wait for its answer.
func (w *world) mayClaim(d *door, waits bool) int {
	now := w.shown()
	switch {
	case d.until.After(now):
		return 0
	case d.probe.call == 0:
		return 1
	case waits && d.probedAt.After(now.Add(-probeFor)):
		return 0
	case waits:
		return math.MaxInt
	}
	var outcome string
	w.must(w.lane.workers.QueryRow(w.ctx, `SELECT coalesce((SELECT outcome FROM call_attempts WHERE call_id = $1 AND attempt = $2), '')`,
		d.probe.call, d.probe.attempt).Scan(&outcome))
	switch outcome {
	case "", "not_sent", "lost", "refused": // it was none
		return 1
	}
	return math.MaxInt
}
