package tasks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/callq/callq/internal/httptask"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/outcome"
	"github.com/jackc/pgx/v5"
)

// verdict returns how an attempt ends whose request was answered so, and closes the limits that the answer is about, for every
// worker; where a limit is per key, for that key. It does so before the outcome is recorded, and once: where Postgres does not
// answer, the call alone waits.
func (a *attempt) verdict(s httptask.Sending) error {
	if s.Answer == nil {
		return s.Err
	}
	r := s.Answer.Refusal(httptask.Forms{})
	sheds, together := a.w.sheds.note(s.Host, r != nil && r.Unsure, time.Now())
	if s.Answer.Status < 400 {
		return s.Err
	}
	ctx, cancel := context.WithTimeout(a.w.recording, statementTimeout)
	defer cancel()
	if names := s.Answer.Malformed(httptask.Forms{}); len(names) > 0 {
		a.w.metrics.malformed.WithLabelValues().Add(float64(len(names)))
		a.w.log.DebugContext(ctx, "headers of an answer cannot be read", "call", a.callID, "headers", names)
	}
	queue, limits, err := a.refusable(ctx)
	if err != nil {
		a.w.log.WarnContext(ctx, "limits not closed for an answer", "limits", a.Limits, "err", err)
		limits = nil
	}
	limits = slices.DeleteFunc(limits, func(l refusable) bool { return !s.From(l.Hosts) })
	if len(limits) > 0 {
		r, limits = about(s.Answer, limits)
	}
	evenly := true
	switch {
	case r == nil || r.Unsure && !sheds:
		return s.Answer.Verdict(nil)
	case r.Unsure:
		r, evenly = &httptask.Refusal{}, together
	}
	return a.refuse(ctx, r, s.Answer.Verdict(r), queue, limits, evenly)
}

// told returns how an attempt ends whose handler returned that the API refused it.
func (a *attempt) told(err *outcome.RefusedError) error {
	ctx, cancel := context.WithTimeout(a.w.recording, statementTimeout)
	defer cancel()
	queue, limits, failed := a.refusable(ctx)
	if failed != nil {
		a.w.log.WarnContext(ctx, "limits not closed for a handler", "limits", a.Limits, "err", failed)
		limits = nil
	}
	windows := slices.ContainsFunc(limits, func(l refusable) bool { return l.Window > 0 })
	limits = slices.DeleteFunc(limits, func(l refusable) bool {
		return len(l.Hosts) > 0 && (a.host == "" || !httptask.Among(a.host, l.Hosts)) || windows && l.Window == 0
	})
	return a.refuse(ctx, &httptask.Refusal{After: err.After}, err, queue, limits, true)
}

// refuse closes limits for a refusal, and returns how the attempt ends. evenly: it may show that calls come together too fast.
func (a *attempt) refuse(ctx context.Context, r *httptask.Refusal, err error, queue refusing, limits []refusable, evenly bool) error {
	after, retries := r.After, queue.OnRefused == "retry"
	closes, probe := false, false
	for _, l := range limits {
		if l.RetryAfter <= 0 || retries && after == 0 {
			continue
		}
		shut := ledger.Shut{
			Limit: l.Name, Key: l.Key, CallID: a.callID, Attempt: a.number, After: after, First: min(cmp.Or(l.Window, time.Second), time.Second),
			Most: l.RetryAfter, Evenly: evenly, By: a.w.id, Reason: fmt.Sprintf("the API answered call %d: %s", a.callID, clean(errors.Unwrap(err).Error())),
		}
		if shutErr := ledger.ShutLimit(ctx, a.w.db, shut); shutErr != nil && !errors.Is(shutErr, ledger.ErrUnknown) {
			a.w.log.WarnContext(ctx, "limit not closed for an answer", "limit", l.Name, "err", shutErr)
			continue
		}
		closes, probe = true, probe || l.Probe
	}
	switch {
	case retries && after > 0:
		return outcome.RetryAfter(after, errors.Unwrap(err))
	case retries:
		return errors.Unwrap(err)
	case queue.Refusals+1 >= queue.MaxRefusals:
		return Permanent(fmt.Errorf("%s; refused %d times, the most that max_refusals allows", err.Error(), queue.Refusals+1))
	case closes && !probe: // it keeps its place
	case closes: // others may be better off
		a.again = new(max(after, minAgain))
	case after > 0:
		a.again = &after
	default:
		a.again = new(a.Policy.Backoff(queue.Refusals+1, rand.Int64N))
	}
	return err
}

// minAgain puts the call of a probe behind those that wait when its limit opens.
const minAgain = 100 * time.Millisecond

// about returns the refusal that counts, nil: none does, and the limits that it is about: those whose own headers say so, else
// those that a header names, else all that count the call. A limit of calls at once is closed only where there is no other.
func about(answer *httptask.Answer, limits []refusable) (most *httptask.Refusal, closed []refusable) {
	read := make([]*httptask.Refusal, len(limits))
	own, named, windows := false, false, false
	names := func(i int) bool { return slices.Contains(read[i].Names, limits[i].Name) }
	for i, l := range limits {
		if read[i] = answer.Refusal(l.Headers); read[i] != nil {
			own, named, windows = own || read[i].Own, named || names(i), windows || l.Window > 0
		}
	}
	for i, l := range limits {
		switch r := read[i]; {
		case r == nil, own && !r.Own, !own && named && !names(i), !own && !named && windows && l.Window == 0:
		default:
			closed = append(closed, l)
			if most == nil || most.Unsure && !r.Unsure || r.After > most.After {
				most = r
			}
		}
	}
	return most, closed
}

// refusing is how the call's queue treats refusals.
type refusing struct {
	OnRefused   string
	MaxRefusals int
	Refusals    int // of the call, since an operator tried it again
}

// refusable is a limit that answers may close.
type refusable struct {
	Name, Key  string
	Window     time.Duration
	Hosts      []string      // whose answers; none: anybody's
	RetryAfter time.Duration // for so long at most; 0: never
	Headers    httptask.Forms
	Probe      bool // the attempt is its probe
}

func (a *attempt) refusable(ctx context.Context) (queue refusing, limits []refusable, err error) {
	queue.MaxRefusals = 1000
	var b pgx.Batch
	b.Queue(refusingSQL, a.callID, a.Queue).QueryRow(func(row pgx.Row) error {
		return row.Scan(&queue.OnRefused, &queue.MaxRefusals, &queue.Refusals)
	})
	b.Queue(refusableSQL, a.Limits, a.Keys, a.callID, a.number).Query(func(rows pgx.Rows) (err error) {
		limits, err = pgx.CollectRows(rows, pgx.RowToStructByPos[refusable])
		return err
	})
	return queue, limits, a.w.db.SendBatch(ctx, &b).Close()
}

const refusingSQL = `
SELECT coalesce(r.on_refused, 'close'), coalesce(r.max_refusals, 1000),
    (SELECT count(*) FROM public.call_attempts
     WHERE call_id = $1 AND outcome = 'refused' AND attempt > coalesce((SELECT retried_after FROM public.call_queue WHERE id = $1), 0))
FROM (SELECT $2::text AS name) q
LEFT JOIN callq.call_queues r ON r.name = q.name`

const refusableSQL = `
SELECT l.name, a.key, l.window_size, l.hosts, l.retry_after, l.headers, (p.call_id = $3 AND p.attempt = $4) IS TRUE
FROM unnest($1::text[], $2::text[]) AS a (name, key)
JOIN callq.call_limits l ON l.name = a.name
LEFT JOIN callq.call_pauses p ON p.what = 'limit' AND p.name = l.name AND p.key = a.key AND p.spell IS NOT NULL`
