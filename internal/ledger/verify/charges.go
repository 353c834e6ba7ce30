package verify

import (
	"fmt"
	"slices"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/limit"
)

const (
	chargedRule = "an attempt that may have been sent is charged to the limits that its queue had"
	costRule    = "an attempt is charged what it cost"
	settledRule = "a settled attempt was charged what was settled"
	untilRule   = "a charge counts until its request can have arrived"
	outcomeRule = "what is said of an attempt fits its outcome"
	openRule    = "an open attempt takes what the limits that its queue had count"
)

// checkOutcome compares what the ledger has of an attempt with its outcome.
func (v *verifier) checkOutcome(a *attempt) {
	if a.Requests != nil && (*a.Requests > 1 || *a.Requests < 0) {
		v.found("an attempt sends at most one request", a.breaks("", fmt.Sprintf("%d requests were sent", *a.Requests)))
	}
	ranWell := a.Outcome == callqueue.OutcomeDone || a.Outcome == callqueue.OutcomeSnoozed
	wrong := ""
	switch {
	case !slices.Contains([]callqueue.Outcome{
		callqueue.OutcomeDone, callqueue.OutcomeSnoozed, callqueue.OutcomeError, callqueue.OutcomePermanent, callqueue.OutcomeLost,
		callqueue.OutcomeNotSent, callqueue.OutcomeCancelled,
	}, a.Outcome):
		wrong = fmt.Sprintf("%q is no outcome", a.Outcome)
	case ranWell && a.Started == nil:
		wrong = "it is " + string(a.Outcome) + ", and never started"
	case ranWell && !a.custom() && (a.Requests == nil || *a.Requests == 0):
		wrong = "it is " + string(a.Outcome) + ", and no request is known to have been sent"
	case a.Started != nil && a.Started.Before(a.Claimed):
		wrong = a.startedTooSoon()
	case a.Settled != nil && *a.Settled < 0:
		wrong = fmt.Sprintf("it settled %d units", *a.Settled)
	default:
		return
	}
	v.found(outcomeRule, a.breaks("", wrong))
}

func (a *attempt) startedTooSoon() string {
	return fmt.Sprintf("it started at %s, before its claim at %s", stamp(*a.Started), stamp(a.Claimed))
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
	wrong := ""
	switch {
	case a.Arrived == nil && len(charges) > 0:
		wrong = "it is charged, and is said never to have been sent"
	case a.Arrived == nil && a.maySent():
		wrong = "it may have been sent, and is charged nothing"
	case a.Arrived != nil && a.cannotSent():
		wrong = "it was not sent, and is said to have arrived"
	case a.Arrived == nil, v.policy.shownTwice(a.Claimed): // which versions were in force is then unknown
		return
	default:
		names := make([]string, len(charges))
		for i, c := range charges {
			names[i] = c.Limit
		}
		slices.Sort(names)
		if had := v.policy.limitsOf(a.Queue, a.Claimed); !slices.Equal(names, had) {
			wrong = fmt.Sprintf("it is charged to %q, and queue %s had %q when it was claimed", names, a.Queue, had)
		}
	}
	if wrong != "" {
		v.found(chargedRule, a.breaks("", wrong))
		return
	}
	var latest *time.Time
	for i := range charges {
		c := &charges[i]
		h := v.policy.versions[c.Limit].during(a.Claimed, a.Finished)
		if len(h) == 0 { // the clock was set back: it ended before its claim
			return
		}
		v.checkCost(a, c, h)
		if c.Until == nil {
			v.found(untilRule, a.breaks(c.Limit, "nothing says until when it counts"))
			return
		}
		v.checkUntil(a, c, h)
		if latest == nil || c.Until.After(*latest) {
			latest = c.Until
		}
	}
	switch {
	case latest == nil && !a.custom() && a.Arrived.Before(a.At):
		v.found(untilRule, a.breaks("", fmt.Sprintf("it arrived by %s, before it started at %s", stamp(*a.Arrived), stamp(a.At))))
	case latest != nil && !latest.Equal(*a.Arrived):
		v.found(untilRule, a.breaks("", fmt.Sprintf("it counts until %s, and had arrived by %s", stamp(*latest), stamp(*a.Arrived))))
	}
}

// checkCost compares the charge with the claimed cost under h[0], which was in force at the claim. Where the limit counted
// cost at the claim or at the end, the reported cost fits too.
func (v *verifier) checkCost(a *attempt, c *charge, h history) {
	if key := h[0].keyOf(a); c.Key != key {
		v.found(costRule, a.breaks(c.Limit, fmt.Sprintf("it is charged to key %q, and counts for %q", c.Key, key)))
	}
	claimed := h[0].costOf(a.Cost)
	byCost := claimed != 1 || slices.ContainsFunc(h, func(r version) bool { return r.CountCost })
	byCalls := claimed == 1 && slices.ContainsFunc(h, func(r version) bool { return !r.CountCost })
	switch {
	case c.Cost == claimed && (a.Settled == nil || byCalls), a.Settled != nil && byCost && c.Cost == *a.Settled:
	case a.Settled != nil:
		v.found(settledRule, a.breaks(c.Limit, fmt.Sprintf("%d units were charged, and %d settled", c.Cost, *a.Settled)))
	default:
		v.found(costRule, a.breaks(c.Limit, fmt.Sprintf("%d units were charged, and %d claimed", c.Cost, claimed)))
	}
}

// checkUntil compares the end of a charge with what is known of the request's arrival. A concurrency limit counts a
// call until its end, other limits from its start on; a lost request for slack beyond that, at least.
func (v *verifier) checkUntil(a *attempt, c *charge, h history) {
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
		v.found(untilRule, a.breaks(c.Limit, fmt.Sprintf("it counts until %s, before %s at %s", stamp(*c.Until), what, stamp(from))))
	}
}

// checkOpen compares an open attempt with the limits that its queue had when it was claimed.
func (v *verifier) checkOpen(a *attempt) {
	had := v.policy.limitsOf(a.Queue, a.Claimed)
	wrong := ""
	switch {
	case a.Started != nil && a.Started.Before(a.Claimed):
		wrong = a.startedTooSoon()
	case a.Acked != nil && a.Acked.Before(a.At):
		wrong = fmt.Sprintf("its request was acknowledged at %s, before its start at %s", stamp(*a.Acked), stamp(a.At))
	case v.policy.shownTwice(a.Claimed): // as in checkCharges
		return
	case !slices.Equal(slices.Sorted(slices.Values(a.Limits)), had):
		wrong = fmt.Sprintf("it takes of %q, and queue %s had %q when it was claimed", a.Limits, a.Queue, had)
	case len(a.Keys) != len(a.Limits) || len(a.Costs) != len(a.Limits):
		wrong = fmt.Sprintf("of its %d limits %d keys and %d costs are known", len(a.Limits), len(a.Keys), len(a.Costs))
	}
	if wrong != "" {
		v.found(openRule, a.breaks("", wrong))
		return
	}
	var within *time.Duration
	for i, name := range a.Limits {
		r := v.policy.versions[name].during(a.Claimed, &a.Claimed)[0]
		if key, cost := r.keyOf(a), r.costOf(a.Cost); a.Keys[i] != key || a.Costs[i] != cost {
			v.found(openRule, a.breaks(name, fmt.Sprintf("it takes %d units of key %q, and counts %d of key %q", a.Costs[i], a.Keys[i], cost, key)))
		}
		if (!a.custom() || r.Anchor == limit.AnchorStart) && (within == nil || r.SendWithin < *within) {
			within = &r.SendWithin
		}
	}
	if (within == nil) != (a.SendWithin == nil) || within != nil && *within != *a.SendWithin {
		v.found(openRule, a.breaks("", "it may be sent for another time than the send_within of its limits"))
	}
}

// openUntil is the latest moment at which the request of a started open attempt can reach the API; nil: its end, which is
// unknown. It repeats callq_occupied_until on purpose; TestOpenUntil compares the two. Claims count an attempt
// from before a failover until its end; it is charged by its start, which is what counts here.
func (p *policy) openUntil(a *attempt, name string) *time.Time {
	h := p.versions[name]
	if len(h) == 0 {
		return nil
	}
	r := h[len(h)-1]
	if r.anchorOf(a) != limit.AnchorStart || a.SendWithin == nil {
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
