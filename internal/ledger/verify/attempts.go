package verify

import (
	"context"
	"encoding/json"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/jackc/pgx/v5"
)

// attempt is an attempt of the ledger, or an open one.
type attempt struct {
	CallID   int64
	Attempt  int32
	At       time.Time // its start, or its claim where no start is recorded
	Claimed  time.Time
	Started  *time.Time
	Finished *time.Time // nil: it is open
	Cost     int64
	Queue    string
	Task     string
	Key      string
	ended
	open
}

// ended is what only an attempt of the ledger has.
type ended struct {
	Arrived  *time.Time
	Settled  *int64 // the cost that its handler reported
	Requests *int16
	Outcome  callqueue.Outcome
	Charged  []byte
}

// open is what only an open attempt has.
type open struct {
	Acked      *time.Time
	SendWithin *time.Duration
	Limits     []string // with Keys and Costs
	Keys       []string
	Costs      []int64
}

// charge is what an attempt consumed of a limit.
type charge struct {
	Limit string     `json:"limit"`
	Key   string     `json:"key"`
	Cost  int64      `json:"cost"`
	Until *time.Time `json:"until"`
}

// breaks is a finding about the attempt.
func (a *attempt) breaks(limitName, detail string) Violation {
	return Violation{Limit: limitName, CallID: a.CallID, Attempt: a.Attempt, Detail: detail}
}

// reported is the cost that its handler reported, or else the claimed cost.
func (a *attempt) reported() int64 {
	if a.Settled != nil {
		return *a.Settled
	}
	return a.Cost
}

// custom reports whether a custom handler ran it.
func (a *attempt) custom() bool { return a.Task != "http" }

// readAttempts reads each attempt once, in the order of the starts. It checks the attempt against what was in force
// when it was claimed, and adds it to the windows that it started in and to the usage of the last windows.
func (v *verifier) readAttempts(ctx context.Context) error {
	if err := v.eachAttempt(ctx, v.checkAttempt); err != nil {
		return err
	}
	for _, name := range sortedKeys(v.policy.versions) {
		w := v.windowsOf(name)
		w.flush()
		v.report.Limits = append(v.report.Limits, w.uses()...)
		v.report.Findings = append(v.report.Findings, w.over...)
	}
	return nil
}

// eachAttempt calls do with each attempt, which is do's until it returns.
func (v *verifier) eachAttempt(ctx context.Context, do func(*attempt)) error {
	rows, err := v.tx.Query(ctx, attemptsSQL, v.since, v.policy.countsFrom(v.since, v.now))
	if err != nil {
		return err
	}
	var a attempt
	_, err = pgx.ForEachRow(rows, []any{
		&a.CallID, &a.Attempt, &a.At, &a.Claimed, &a.Started, &a.Finished, &a.Cost, &a.Queue, &a.Task, &a.Key,
		&a.Arrived, &a.Settled, &a.Requests, &a.Outcome, &a.Charged,
		&a.Acked, &a.SendWithin, &a.Limits, &a.Keys, &a.Costs,
	}, func() error {
		do(&a)
		return nil
	})
	return err
}

// attemptsSQL skips times such as infinity, which would end the scan: timelessSQL finds them.
const attemptsSQL = `
SELECT call_id, attempt, coalesce(started_at, claimed_at) AS at, claimed_at, started_at, finished_at, cost, queue, task, key,
    arrived_by, settled, requests, outcome, charged,
    NULL::timestamptz AS acked_at, NULL::interval AS send_within, NULL::text[] AS limits, NULL::text[] AS keys, NULL::bigint[] AS costs
FROM call_attempts
WHERE ($1::timestamptz IS NULL OR finished_at >= $1 OR arrived_by >= $2::timestamptz) AND NOT ` + timeless + `
UNION ALL
SELECT call_id, attempt, coalesce(started_at, claimed_at), claimed_at, started_at, NULL, cost, queue, task, key,
    NULL, NULL, NULL, '', NULL, acked_at, send_within, limits, keys, costs
FROM call_open
ORDER BY at, call_id, attempt`

func (v *verifier) checkAttempt(a *attempt) {
	verified := v.since == nil || a.Finished == nil || !a.Finished.Before(*v.since)
	if verified {
		v.report.Attempts++
	}
	if a.Finished == nil {
		v.checkOpen(a)
		if a.Started != nil {
			for _, name := range a.Limits {
				v.windowsOf(name).enter(a, v.policy.openUntil(a, name))
			}
		}
		return
	}
	var charges []charge
	if err := json.Unmarshal(a.Charged, &charges); err != nil {
		v.found(chargedRule, a.breaks("", "what it is charged cannot be read: "+err.Error()))
		return
	}
	if verified {
		v.checkOutcome(a)
		v.checkCharges(a, charges)
	}
	for _, c := range charges {
		v.windowsOf(c.Limit).enter(a, c.Until)
	}
	v.addUsage(a, charges)
}
