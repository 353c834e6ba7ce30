package verify

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/words"
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
	Charged  []byte // of an open one, what it takes
	ended
	Acked      *time.Time     // only of an open one
	Overtaken  *time.Time     // only of an open one
	SendWithin *time.Duration // only of an open one
	Run        *int64         // that it was one of; nil: none
}

// unsure reports whether it is not known when it had its turn in a run, if it had one: it is open, or was lost.
func (a *attempt) unsure() bool {
	return a.Run != nil && (a.Finished == nil || a.Outcome == callqueue.OutcomeLost)
}

// ended is what only an attempt of the ledger has.
type ended struct {
	Arrived *time.Time
	Settled *int64 // the cost that its handler reported
	Outcome callqueue.Outcome
	Code    *int16 // of its answer
	Took    *int32 // ms until that
	Proof   *string
	Host    *string
	SentBy  *time.Time
}

// charge is what an attempt consumed of a limit, or an open one takes of it.
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

// readAttempts reads each attempt once, in the order of the starts. It checks the attempt against what was in force
// when it was claimed, and adds it to the windows that it started in.
func (v *verifier) readAttempts(ctx context.Context) error {
	about, err := v.aboutAttempts(ctx)
	if err != nil {
		return err
	}
	read := int64(0)
	if err := v.eachAttempt(ctx, func(a *attempt) {
		v.checkAttempt(a)
		if read++; read%1000 == 0 {
			v.progress("attempts", read, about)
		}
	}); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(v.versions)) {
		w := v.windowsOf(name)
		w.flush()
		for _, use := range w.use {
			if v.since == nil || use.Starts > 0 {
				v.report.Limits = append(v.report.Limits, use)
			}
		}
	}
	return nil
}

// aboutAttempts is about how many attempts there are to read, as Postgres's statistics have it: to count them would take as
// long as to read them. 0: not known.
func (v *verifier) aboutAttempts(ctx context.Context) (n int64, err error) {
	if v.since == nil {
		err = v.tx.QueryRow(ctx, `SELECT greatest(reltuples, 0)::bigint FROM pg_class WHERE oid = 'public.call_attempts'::regclass`).Scan(&n)
	}
	return n, err
}

func (v *verifier) eachAttempt(ctx context.Context, do func(*attempt)) error {
	return each(ctx, v.tx, pgx.RowToAddrOfStructByPos[attempt], do, attemptsSQL, v.since, v.countsFrom) // by name is slow
}

// attemptsSQL skips times such as infinity, which would end the scan: endedSQL finds them.
const attemptsSQL = `
SELECT call_id, attempt, coalesce(started_at, claimed_at) AS at, claimed_at, started_at, finished_at, cost, queue, task, key,
    charged, arrived_by, settled, outcome, code, took_ms, proof, host, sent_by, NULL::timestamptz AS acked_at, NULL::timestamptz AS overtaken_at, NULL::interval AS send_within, run
FROM public.call_attempts a
WHERE ($1::timestamptz IS NULL OR finished_at >= $1 OR arrived_by >= $2::timestamptz) AND NOT ` + timeless + `
UNION ALL
SELECT call_id, attempt, coalesce(started_at, claimed_at), claimed_at, started_at, NULL, cost, queue, task, key,
    (SELECT coalesce(jsonb_agg(jsonb_build_object('limit', u.name, 'key', u.key, 'cost', u.cost)), '[]')
        FROM unnest(limits, keys, costs) AS u (name, key, cost)),
    NULL, NULL, '', NULL, NULL, NULL, NULL, NULL, acked_at, overtaken_at, send_within, CASE WHEN rooms IS NOT NULL THEN batch END
FROM callq.call_open
ORDER BY at, call_id, attempt`

func (v *verifier) checkAttempt(a *attempt) {
	verified := v.since == nil || a.Finished == nil || !a.Finished.Before(*v.since)
	if verified {
		v.report.Attempts++
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
	if verified {
		v.arrivals.add(a, charges)
	}
	for _, c := range charges {
		if a.Finished != nil {
			v.windowsOf(c.Limit).enter(a, c.Until)
		} else if a.Started != nil {
			v.windowsOf(c.Limit).enter(a, v.openUntil(a, c.Limit))
		}
	}
}

const (
	chargedRule = "an attempt that may have been sent is charged to the limits that its queue had"
	costRule    = "an attempt is charged what it cost"
	untilRule   = "a charge counts until its request can have arrived"
)

// breaks adds a finding about an attempt, and about one of its limits unless that is "".
func (v *verifier) breaks(a *attempt, rule, limitName, format string, args ...any) {
	v.found(Violation{Rule: rule, Limit: limitName, CallID: a.CallID, Attempt: a.Attempt, Detail: fmt.Sprintf(format, args...)})
}

// checkCharges compares the charges of an attempt that is open, or arrived, with the limits that its queue had at the claim.
func (v *verifier) checkCharges(a *attempt, charges []charge) {
	had, isOpen := v.limitsOf(a.Queue, a.Claimed), a.Finished == nil
	var names []string
	for _, c := range charges {
		names = append(names, c.Limit)
	}
	slices.Sort(names)
	switch {
	case !isOpen && a.Arrived == nil, shownTwice(v.losses, a.Claimed): // endedSQL checks it; or it is unknown what was in force
	case !slices.Equal(names, had):
		v.breaks(a, chargedRule, "", "it is charged to %q, and queue %s had %q when it was claimed", names, a.Queue, had)
	case isOpen:
		v.checkOpen(a, charges)
	default:
		v.checkEnded(a, charges)
	}
}

// checkEnded compares each charge with what was in force, and the latest until with the arrival.
func (v *verifier) checkEnded(a *attempt, charges []charge) {
	var latest time.Time
	for _, c := range charges {
		h := v.versions[c.Limit].during(a.Claimed, *a.Finished)
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
	if len(charges) > 0 && !latest.Equal(*a.Arrived) {
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
	asClaimed := c.Cost == claimed && (a.Settled == nil || byCalls)
	if asSettled := a.Settled != nil && byCost && c.Cost == *a.Settled; !asClaimed && !asSettled {
		v.breaks(a, costRule, c.Limit, "%s charged, %d claimed, and a cost of %d reported", words.Count(c.Cost, "unit"), claimed, a.reported())
	}
}

// checkUntil compares the end of a charge with what is known of the request's arrival. A concurrency limit counts a
// call until its end, other limits from its start on; a lost request for slack beyond that, at least.
func (v *verifier) checkUntil(a *attempt, c charge, h history) {
	concurrency, slack, later := true, h[0].Slack, true
	for _, r := range h {
		concurrency, slack = concurrency && r.Rate.Window == 0, min(slack, r.Slack)
		later = later && r.Proof == limit.ProofLater
	}
	from, what := a.At, "its start"
	switch {
	case concurrency:
		from, what = *a.Finished, "its end"
	case a.Outcome == callqueue.OutcomeLost && a.Started != nil:
		from, what = a.At.Add(slack), "its start and slack"
	}
	switch {
	case c.Until.Before(from):
		v.breaks(a, untilRule, c.Limit, "it counts until %s, before %s at %s", *c.Until, what, from)
	case later && a.Proof == nil && a.Host != nil && !c.Until.Equal(limit.Unknown()),
		later && a.Proof == nil && a.Task == "http" && a.Code == nil && a.Outcome != callqueue.OutcomeDone && c.Until.Before(limit.Unknown()):
		v.breaks(a, untilRule, c.Limit, "it had no answer, and nothing proves that it had arrived by %s", *c.Until)
	case later && a.SentBy != nil && c.Until.Before(*a.SentBy):
		v.breaks(a, untilRule, c.Limit, "it counts until %s, before it had reached its host at %s", *c.Until, *a.SentBy)
	}
}

// checkOpen compares what an open attempt takes, and how long it may be sent for, with what was in force at its claim.
func (v *verifier) checkOpen(a *attempt, takes []charge) {
	var within *time.Duration
	for _, c := range takes {
		h := v.versions[c.Limit].during(a.Claimed, a.Claimed)
		v.checkCost(a, c, h)
		r := h[0]
		if (a.Task == "http" || r.Anchor == limit.AnchorStart) && (within == nil || r.SendWithin < *within) {
			within = &r.SendWithin
		}
	}
	if within != nil && a.Run != nil {
		within = new(*within + limit.RunLate)
	}
	if (within == nil) != (a.SendWithin == nil) || within != nil && *within != *a.SendWithin {
		v.breaks(a, "an open attempt may be sent within the send_within of its limits", "", "it may be sent for another time")
	}
}

// openUntil is the latest moment at which the request of a started open attempt can reach the API; nil: its end, which is
// unknown. It repeats callq.occupied_until on purpose; TestOpenUntil compares the two. Claims count an attempt
// from before a failover until its end; it is charged by its start, which is what counts here.
func (v *verifier) openUntil(a *attempt, name string) *time.Time {
	h := v.versions[name]
	if len(h) == 0 || a.SendWithin == nil {
		return nil
	}
	r := h[len(h)-1]
	if r.Anchor == limit.AnchorFinish || r.Anchor == "" && a.Task != "http" {
		return nil
	}
	until, seen := a.Started.Add(*a.SendWithin+r.Slack), a.Acked
	switch {
	case r.Proof == limit.ProofLater && a.Overtaken == nil:
		return nil
	case r.Proof == limit.ProofLater:
		seen = a.Overtaken
	case seen == nil, r.Proof == limit.ProofAnswer:
		seen, until = nil, until.Add(limit.ResendMost)
	}
	if seen != nil && seen.After(until) {
		until = *seen
	}
	return &until
}
