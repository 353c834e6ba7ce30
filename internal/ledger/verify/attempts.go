package verify

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/limit"
	"github.com/jackc/pgx/v5"
)

// attempt is an attempt of the ledger, or an open one. Its fields have the order of attemptsSQL.
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
// when it was claimed, and adds it to the windows that it started in.
func (v *verifier) readAttempts(ctx context.Context) error {
	if err := v.eachAttempt(ctx, v.checkAttempt); err != nil {
		return err
	}
	for _, name := range sortedKeys(v.versions) {
		w := v.windowsOf(name)
		w.flush()
		v.report.Limits = append(v.report.Limits, w.uses()...)
	}
	return nil
}

// eachAttempt calls do with each attempt.
func (v *verifier) eachAttempt(ctx context.Context, do func(*attempt)) error {
	_, err := collect(ctx, v.tx, func(row pgx.CollectableRow) (none struct{}, err error) {
		a, err := pgx.RowToAddrOfStructByPos[attempt](row) // by name would be slow
		if err == nil {
			do(a)
		}
		return none, err
	}, attemptsSQL, v.since, v.countsFrom())
	return err
}

// attemptsSQL skips times such as infinity, which would end the scan: endedSQL finds them.
const attemptsSQL = `
SELECT call_id, attempt, coalesce(started_at, claimed_at) AS at, claimed_at, started_at, finished_at, cost, queue, task, key,
    arrived_by, settled, requests, outcome, charged,
    NULL::timestamptz AS acked_at, NULL::interval AS send_within, NULL::text[] AS limits, NULL::text[] AS keys, NULL::bigint[] AS costs
FROM call_attempts a
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
				v.windowsOf(name).enter(a, v.openUntil(a, name))
			}
		}
		return
	}
	var charges []charge
	if err := json.Unmarshal(a.Charged, &charges); err != nil {
		v.unreadable = true
		v.breaks(a, chargedRule, "", "what it is charged cannot be read: %v", err)
		return
	}
	if verified {
		v.checkCharges(a, charges)
	}
	for _, c := range charges {
		v.windowsOf(c.Limit).enter(a, c.Until)
	}
}

const (
	chargedRule = "an attempt that may have been sent is charged to the limits that its queue had"
	costRule    = "an attempt is charged what it cost"
	settledRule = "a settled attempt was charged what was settled"
	untilRule   = "a charge counts until its request can have arrived"
	openRule    = "an open attempt takes what the limits that its queue had count"
)

// breaks adds a finding about an attempt, and about one of its limits unless that is "".
func (v *verifier) breaks(a *attempt, rule, limitName, format string, args ...any) {
	for i, arg := range args {
		if t, ok := arg.(time.Time); ok {
			args[i] = stamp(t)
		}
	}
	v.found(rule, Violation{Limit: limitName, CallID: a.CallID, Attempt: a.Attempt, Detail: fmt.Sprintf(format, args...)})
}

// maySent reports whether a request of the attempt may have reached the API, so that it must be charged, and cannotSent
// whether none can, so that it must not. Some attempts are neither: the ledger does not tell.
func (a *attempt) maySent() bool {
	switch a.Outcome {
	case callqueue.OutcomeDone, callqueue.OutcomeLost, callqueue.OutcomeSnoozed:
		return true
	case callqueue.OutcomeError, callqueue.OutcomePermanent:
		return a.Started != nil && (a.custom() || a.Requests == nil || *a.Requests > 0)
	}
	return a.Requests != nil && *a.Requests > 0
}

func (a *attempt) cannotSent() bool {
	return a.Outcome == callqueue.OutcomeNotSent || !a.custom() && a.Requests != nil && *a.Requests == 0
}

// checkCharges compares an attempt's charges with the limits that its queue had.
func (v *verifier) checkCharges(a *attempt, charges []charge) {
	switch {
	case a.Arrived == nil && len(charges) > 0:
		v.breaks(a, chargedRule, "", "it is charged, and is said never to have been sent")
	case a.Arrived == nil && a.maySent():
		v.breaks(a, chargedRule, "", "it may have been sent, and is charged nothing")
	case a.Arrived != nil && a.cannotSent():
		v.breaks(a, chargedRule, "", "it was not sent, and is said to have arrived")
	case a.Arrived != nil && !shownTwice(v.losses, a.Claimed): // else it is unknown which versions were in force
		var names []string
		for _, c := range charges {
			names = append(names, c.Limit)
		}
		slices.Sort(names)
		if had := v.limitsOf(a.Queue, a.Claimed); !slices.Equal(names, had) {
			v.breaks(a, chargedRule, "", "it is charged to %q, and queue %s had %q when it was claimed", names, a.Queue, had)
			return
		}
		v.checkEach(a, charges)
	}
}

// checkEach compares each charge with what was in force, and the latest until with the arrival.
func (v *verifier) checkEach(a *attempt, charges []charge) {
	var latest time.Time
	for _, c := range charges {
		h := v.versions[c.Limit].during(a.Claimed, *a.Finished)
		if len(h) == 0 { // the clock was set back: it ended before its claim
			return
		}
		v.checkCost(a, c, h)
		if c.Until == nil {
			v.breaks(a, untilRule, c.Limit, "nothing says until when it counts")
			return
		}
		v.checkUntil(a, c, h)
		if c.Until.After(latest) {
			latest = *c.Until
		}
	}
	switch {
	case len(charges) == 0 && !a.custom() && a.Arrived.Before(a.At):
		v.breaks(a, untilRule, "", "it arrived by %s, before it started at %s", *a.Arrived, a.At)
	case len(charges) > 0 && !latest.Equal(*a.Arrived):
		v.breaks(a, untilRule, "", "it counts until %s, and had arrived by %s", latest, *a.Arrived)
	}
}

// checkCost compares the charge with the claimed cost under h[0], which was in force at the claim. Where the limit counted
// cost at the claim or at the end, the reported cost fits too.
func (v *verifier) checkCost(a *attempt, c charge, h history) {
	key, claimed := h[0].claims(a)
	if c.Key != key {
		v.breaks(a, costRule, c.Limit, "it is charged to key %q, and counts for %q", c.Key, key)
	}
	byCost := claimed != 1 || slices.ContainsFunc(h, func(r version) bool { return r.CountCost })
	byCalls := claimed == 1 && slices.ContainsFunc(h, func(r version) bool { return !r.CountCost })
	switch {
	case c.Cost == claimed && (a.Settled == nil || byCalls), a.Settled != nil && byCost && c.Cost == *a.Settled:
	case a.Settled != nil:
		v.breaks(a, settledRule, c.Limit, "%d units were charged, and %d settled", c.Cost, *a.Settled)
	default:
		v.breaks(a, costRule, c.Limit, "%d units were charged, and %d claimed", c.Cost, claimed)
	}
}

// checkUntil compares the end of a charge with what is known of the request's arrival. A concurrency limit counts a
// call until its end, other limits from its start on; a lost request for slack beyond that, at least.
func (v *verifier) checkUntil(a *attempt, c charge, h history) {
	concurrency, slack := true, h[0].Slack
	for _, r := range h {
		concurrency, slack = concurrency && r.Window == 0, min(slack, r.Slack)
	}
	from, what := a.At, "its start"
	switch {
	case concurrency:
		from, what = *a.Finished, "its end"
	case a.Outcome == callqueue.OutcomeLost && a.Started != nil:
		from, what = a.At.Add(slack), "its start and slack"
	}
	if c.Until.Before(from) {
		v.breaks(a, untilRule, c.Limit, "it counts until %s, before %s at %s", *c.Until, what, from)
	}
}

// checkOpen compares an open attempt with the limits that its queue had when it was claimed.
func (v *verifier) checkOpen(a *attempt) {
	had := v.limitsOf(a.Queue, a.Claimed)
	switch {
	case a.Started != nil && a.Started.Before(a.Claimed):
		v.breaks(a, openRule, "", "it started at %s, before its claim at %s", *a.Started, a.Claimed)
	case a.Acked != nil && a.Acked.Before(a.At):
		v.breaks(a, openRule, "", "its request was acknowledged at %s, before its start at %s", *a.Acked, a.At)
	case shownTwice(v.losses, a.Claimed): // as in checkCharges
	case !slices.Equal(slices.Sorted(slices.Values(a.Limits)), had):
		v.breaks(a, openRule, "", "it takes of %q, and queue %s had %q when it was claimed", a.Limits, a.Queue, had)
	case len(a.Keys) != len(a.Limits) || len(a.Costs) != len(a.Limits):
		v.breaks(a, openRule, "", "of its %d limits %d keys and %d costs are known", len(a.Limits), len(a.Keys), len(a.Costs))
	default:
		var within *time.Duration
		for i, name := range a.Limits {
			r := v.versions[name].during(a.Claimed, a.Claimed)[0]
			if key, cost := r.claims(a); a.Keys[i] != key || a.Costs[i] != cost {
				v.breaks(a, openRule, name, "it takes %d units of key %q, and counts %d of key %q", a.Costs[i], a.Keys[i], cost, key)
			}
			if (!a.custom() || r.Anchor == limit.AnchorStart) && (within == nil || r.SendWithin < *within) {
				within = &r.SendWithin
			}
		}
		if (within == nil) != (a.SendWithin == nil) || within != nil && *within != *a.SendWithin {
			v.breaks(a, openRule, "", "it may be sent for another time than the send_within of its limits")
		}
	}
}

// openUntil is the latest moment at which the request of a started open attempt can reach the API; nil: its end, which is
// unknown. It repeats callq_occupied_until on purpose; TestOpenUntil compares the two. Claims count an attempt
// from before a failover until its end; it is charged by its start, which is what counts here.
func (v *verifier) openUntil(a *attempt, name string) *time.Time {
	h := v.versions[name]
	if len(h) == 0 || a.SendWithin == nil {
		return nil
	}
	r := h[len(h)-1]
	if r.Anchor == limit.AnchorFinish || r.Anchor == "" && a.custom() {
		return nil
	}
	until := a.Started.Add(*a.SendWithin + r.Slack)
	if a.Acked == nil {
		until = until.Add(limit.ResendMost)
	} else if a.Acked.After(until) {
		until = *a.Acked
	}
	return &until
}
