package ledger

import (
	"context"
	"encoding/json"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/jackc/pgx/v5"
)

// attempt is one of the ledger, or an open one.
type attempt struct {
	CallID     int64
	Attempt    int32
	At         time.Time // its start, or its claim where none is recorded
	Claimed    time.Time
	Started    *time.Time
	Arrived    *time.Time
	Finished   *time.Time // nil: it is open
	Acked      *time.Time
	SendWithin *time.Duration
	Cost       int64
	Settled    *int64
	Requests   *int16
	Outcome    callqueue.Outcome
	Queue      string
	Task       string
	Key        string
	Charged    []byte   // of the ledger
	Limits     []string // of an open attempt, with Keys and Costs
	Keys       []string
	Costs      []int64
}

// charge is what an attempt takes of a limit.
type charge struct {
	Limit string     `json:"limit"`
	Key   string     `json:"key"`
	Cost  int64      `json:"cost"`
	Until *time.Time `json:"until"` // nil: not known yet
}

// breaks is a finding of the attempt.
func (a *attempt) breaks(limitName, detail string) Violation {
	return Violation{Limit: limitName, CallID: a.CallID, Attempt: a.Attempt, Detail: detail}
}

// really is what it cost, as far as is known.
func (a *attempt) really() int64 {
	if a.Settled != nil {
		return *a.Settled
	}
	return a.Cost
}

// own says whether a handler of one's own ran it.
func (a *attempt) own() bool { return a.Task != "http" }

// goThrough is the one pass: it reads each attempt once, in the order of the starts, and holds it to what was in force
// when it was claimed, adds it to the windows that it started in, and to the usage of the last ones.
func (v *verifier) goThrough(ctx context.Context) error {
	rows, err := v.tx.Query(ctx, passSQL, v.since, v.reachesBackTo())
	if err != nil {
		return err
	}
	var a attempt
	if _, err := pgx.ForEachRow(rows, []any{
		&a.CallID, &a.Attempt, &a.At, &a.Claimed, &a.Started, &a.Arrived, &a.Finished, &a.Acked, &a.SendWithin,
		&a.Cost, &a.Settled, &a.Requests, &a.Outcome, &a.Queue, &a.Task, &a.Key, &a.Charged, &a.Limits, &a.Keys, &a.Costs,
	}, func() error {
		v.pass(&a)
		return nil
	}); err != nil {
		return err
	}
	for _, name := range sortedKeys(v.versions) {
		w := v.windowsOf(name)
		w.flush()
		v.report.Limits = append(v.report.Limits, w.uses()...)
		for _, over := range w.over {
			over.Rule = "no window holds more than the rate"
			v.report.Findings = append(v.report.Findings, over)
		}
	}
	return nil
}

// reachesBackTo is when what counts in no window any more that is looked at had arrived at the latest.
func (v *verifier) reachesBackTo() *time.Time {
	if v.since == nil {
		return nil
	}
	reach := time.Minute
	for _, h := range v.versions {
		for _, r := range h {
			reach = max(reach, r.Window+r.Window/50+time.Minute) // and a bucket of usage
		}
	}
	to := *v.since
	if v.now.Before(to) {
		to = v.now
	}
	to = to.Add(-reach - v.gains.All())
	return &to
}

// A time that is none, as infinity, would end the pass: timelessSQL finds it.
const passSQL = `
SELECT call_id, attempt, coalesce(started_at, claimed_at) AS at, claimed_at, started_at, arrived_by, finished_at, NULL::timestamptz AS acked_at, NULL::interval AS send_within,
    cost, settled, requests, outcome, queue, task, key, charged, NULL::text[] AS limits, NULL::text[] AS keys, NULL::bigint[] AS costs
FROM call_attempts
WHERE ($1::timestamptz IS NULL OR finished_at >= $1 OR arrived_by >= $2::timestamptz) AND NOT ` + timeless + `
UNION ALL
SELECT call_id, attempt, coalesce(started_at, claimed_at), claimed_at, started_at, NULL, NULL, acked_at, send_within,
    cost, NULL, NULL, '', queue, task, key, NULL, limits, keys, costs
FROM call_open
ORDER BY at, call_id, attempt`

const (
	timeless    = `('infinity' IN (claimed_at, started_at, arrived_by, finished_at) OR '-infinity' IN (claimed_at, started_at, arrived_by, finished_at)) IS TRUE`
	timelessSQL = `
SELECT call_id, attempt, 'one of its times is infinite' AS detail
FROM call_attempts
WHERE ($1::timestamptz IS NULL OR finished_at >= $1) AND ` + timeless + ` ORDER BY call_id LIMIT $2`
)

func (v *verifier) pass(a *attempt) {
	looked := v.since == nil || a.Finished == nil || !a.Finished.Before(*v.since)
	if looked {
		v.report.Attempts++
	}
	if a.Finished == nil {
		v.passOpen(a)
		return
	}
	var charges []charge
	if err := json.Unmarshal(a.Charged, &charges); err != nil {
		v.found(chargedRule, a.breaks("", "what it is charged cannot be read: "+err.Error()))
		return
	}
	if looked {
		v.checkOutcome(a)
		v.checkCharges(a, charges)
	}
	for _, c := range charges {
		v.windowsOf(c.Limit).enter(a, c.Until)
	}
	v.addUsage(a, charges)
}

func (v *verifier) passOpen(a *attempt) {
	v.checkOpen(a)
	if a.Started == nil {
		return
	}
	for _, name := range a.Limits {
		v.windowsOf(name).enter(a, v.openUntil(a, name))
	}
}
