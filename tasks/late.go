package tasks

import (
	"context"
	"sync"
	"time"
)

// lateness notices when a queue's attempts are often not sent because this worker takes longer than
// send_within from asking for the start to writing. Such a call goes round again and again, and
// nothing but its attempts would show it.
type lateness struct {
	mu     sync.Mutex
	queues map[string]*punctuality
}

// punctuality is how a queue's attempts have fared lately.
type punctuality struct {
	late float64 // the share that was too late, of the last lateOf or so
	said bool    // that it is often so
}

const (
	lateOf    = 20
	lateOften = 0.25 // six in a row, of a queue that had none
	lateRare  = 0.05
)

// note notes an attempt. changed says that it has just become often so, or rare again.
func (l *lateness) note(queue string, late bool) (often, changed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.queues[queue]
	if p == nil {
		p = &punctuality{}
		l.queues[queue] = p
	}
	p.late *= 1 - 1./lateOf
	if late {
		p.late += 1. / lateOf
	}
	if p.said && p.late < lateRare || !p.said && p.late > lateOften {
		p.said = !p.said
		return p.said, true
	}
	return p.said, false
}

// noteLate counts an attempt that was not sent in time, and says when that becomes frequent, with what
// to do about it. The attempt had started, and its outcome is recorded: that comes first.
func (a *attempt) noteLate() {
	if a.state != started || len(a.Limits) == 0 || !a.gated {
		return
	}
	if a.late {
		a.w.metrics.tooLate.WithLabelValues(a.Queue).Inc()
	}
	often, changed := a.w.lateness.note(a.Queue, a.late)
	switch {
	case !changed:
	case often:
		go a.warnLate() // other attempts' outcomes are waiting
	default:
		a.w.log.InfoContext(a.w.recording, "requests are sent in time again", "queue", a.Queue)
	}
}

func (a *attempt) warnLate() {
	name, sendWithin := a.tightest()
	a.w.log.WarnContext(a.w.recording, "requests are often not sent in time: raise the limit's send_within, or add workers",
		"queue", a.Queue, "limit", name, "send_within", sendWithin)
}

// tightest is the attempt's limit with the least send_within. While Postgres is away it is not known.
func (a *attempt) tightest() (name string, sendWithin time.Duration) {
	ctx, cancel := context.WithTimeout(a.w.recording, statementTimeout)
	defer cancel()
	if err := a.w.cfg.Pool.QueryRow(ctx, tightestSQL, a.Limits, a.Task).Scan(&name, &sendWithin); err != nil {
		a.w.log.DebugContext(ctx, "limits not read", "err", err)
	}
	return name, sendWithin
}

// For a handler of one's own only a limit that is anchored at the start bounds the gate (claim.go).
const tightestSQL = `
SELECT name, send_within FROM call_limits
WHERE name = ANY($1) AND ($2 = '` + HTTP + `' OR anchor = 'start')
ORDER BY send_within, name LIMIT 1`
