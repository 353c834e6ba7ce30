package ledger

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

// checkOutcome holds what is said of an ended attempt against each other.
func (v *verifier) checkOutcome(a *attempt) {
	if a.Requests != nil && (*a.Requests > 1 || *a.Requests < 0) {
		v.found("an attempt sends at most one request", a.breaks("", fmt.Sprintf("%d requests were sent", *a.Requests)))
	}
	wrong := ""
	switch a.Outcome {
	case callqueue.OutcomeDone, callqueue.OutcomeSnoozed:
		switch {
		case a.Started == nil:
			wrong = "it is " + string(a.Outcome) + ", and never started"
		case !a.own() && (a.Requests == nil || *a.Requests == 0):
			wrong = "it is " + string(a.Outcome) + ", and no request is known to have been sent"
		}
	case callqueue.OutcomeError, callqueue.OutcomePermanent, callqueue.OutcomeLost, callqueue.OutcomeNotSent, callqueue.OutcomeCancelled:
	default:
		wrong = fmt.Sprintf("%q is no outcome", a.Outcome)
	}
	switch {
	case wrong != "":
	case a.Started != nil && a.Started.Before(a.Claimed):
		wrong = fmt.Sprintf("it started at %s, before its claim at %s", stamp(*a.Started), stamp(a.Claimed))
	case a.Settled != nil && *a.Settled < 0:
		wrong = fmt.Sprintf("it settled %d units", *a.Settled)
	}
	if wrong != "" {
		v.found(outcomeRule, a.breaks("", wrong))
	}
}

// maySent says whether a request of the attempt may have reached the API, so that it has to be charged; and
// cannotSent whether none can, so that nothing is. Of the rest what is said does not tell.
func (a *attempt) maySent() bool {
	switch a.Outcome {
	case callqueue.OutcomeDone, callqueue.OutcomeLost, callqueue.OutcomeSnoozed:
		return true
	case callqueue.OutcomeError, callqueue.OutcomePermanent:
		return a.Started != nil && (a.own() || a.Requests == nil || *a.Requests > 0)
	}
	return a.Requests != nil && *a.Requests > 0
}

func (a *attempt) cannotSent() bool {
	return a.Outcome == callqueue.OutcomeNotSent || !a.own() && a.Requests != nil && *a.Requests == 0
}

// checkCharges holds what an attempt was charged against what the limits were that its queue had.
func (v *verifier) checkCharges(a *attempt, charges []charge) {
	switch {
	case a.Arrived == nil && len(charges) > 0:
		v.found(chargedRule, a.breaks("", "it is charged, and is said never to have been sent"))
		return
	case a.Arrived == nil && a.maySent():
		v.found(chargedRule, a.breaks("", "it may have been sent, and is charged nothing"))
		return
	case a.Arrived == nil:
		return
	case a.cannotSent():
		v.found(chargedRule, a.breaks("", "it was not sent, and is said to have arrived"))
		return
	case v.shownTwice(a.Claimed): // which versions were in force is not to be told
		return
	}
	had := v.limitsOf(a.Queue, a.Claimed)
	names := make([]string, len(charges))
	for i, c := range charges {
		names[i] = c.Limit
	}
	slices.Sort(names)
	if !slices.Equal(names, had) {
		v.found(chargedRule, a.breaks("", fmt.Sprintf("it is charged to %q, and queue %s had %q when it was claimed", names, a.Queue, had)))
		return
	}
	var latest *time.Time
	for i := range charges {
		c := &charges[i]
		h := v.versions[c.Limit].during(a.Claimed, a.Finished)
		if len(h) == 0 { // it ended before its claim, by a clock that was set back
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
	case latest == nil && !a.own() && a.Arrived.Before(a.At):
		v.found(untilRule, a.breaks("", fmt.Sprintf("it arrived by %s, before it started at %s", stamp(*a.Arrived), stamp(a.At))))
	case latest != nil && !latest.Equal(*a.Arrived):
		v.found(untilRule, a.breaks("", fmt.Sprintf("it counts until %s, and had arrived by %s", stamp(*latest), stamp(*a.Arrived))))
	}
}

// checkCost holds the charge against what a claim took (h[0] was in force), or what was settled, if it counted cost then
// or when it ended.
func (v *verifier) checkCost(a *attempt, c *charge, h history) {
	if key := h[0].keyOf(a); c.Key != key {
		v.found(costRule, a.breaks(c.Limit, fmt.Sprintf("it is charged to key %q, and counts for %q", c.Key, key)))
	}
	claimed := h[0].costOf(a.Cost)
	byCost := claimed != 1 || slices.ContainsFunc(h, func(r version) bool { return r.CountCost })
	byCalls := claimed == 1 && slices.ContainsFunc(h, func(r version) bool { return !r.CountCost })
	if c.Cost == claimed && (a.Settled == nil || byCalls) || a.Settled != nil && byCost && c.Cost == *a.Settled {
		return
	}
	if a.Settled != nil {
		v.found(settledRule, a.breaks(c.Limit, fmt.Sprintf("%d units were charged, and %d settled", c.Cost, *a.Settled)))
		return
	}
	v.found(costRule, a.breaks(c.Limit, fmt.Sprintf("%d units were charged, and %d claimed", c.Cost, claimed)))
}

// checkUntil holds it against what is known of the arrival. A limit of calls at once counts each until its end, the others
// from the start on; and where there was no answer, for slack beyond it at least.
func (v *verifier) checkUntil(a *attempt, c *charge, h history) {
	atOnce, slack := true, h[0].Slack
	for _, r := range h {
		atOnce, slack = atOnce && r.Window == 0, min(slack, r.Slack)
	}
	from, what := a.At, "its start"
	switch {
	case atOnce:
		from, what = *a.Finished, "its end"
	case a.Outcome == callqueue.OutcomeLost && a.Started != nil:
		from, what = a.At.Add(slack), "its start and slack"
	}
	if c.Until.Before(from) {
		v.found(untilRule, a.breaks(c.Limit, fmt.Sprintf("it counts until %s, before %s at %s", stamp(*c.Until), what, stamp(from))))
	}
}

// checkOpen holds an open attempt against the limits that its queue had when it was claimed.
func (v *verifier) checkOpen(a *attempt) {
	had := v.limitsOf(a.Queue, a.Claimed)
	wrong := ""
	switch {
	case a.Started != nil && a.Started.Before(a.Claimed):
		wrong = fmt.Sprintf("it started at %s, before its claim at %s", stamp(*a.Started), stamp(a.Claimed))
	case a.Acked != nil && a.Acked.Before(a.At):
		wrong = fmt.Sprintf("its request was acknowledged at %s, before its start at %s", stamp(*a.Acked), stamp(a.At))
	case v.shownTwice(a.Claimed): // as in checkCharges
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
		r := v.versions[name].during(a.Claimed, &a.Claimed)[0]
		if key, cost := r.keyOf(a), r.costOf(a.Cost); a.Keys[i] != key || a.Costs[i] != cost {
			v.found(openRule, a.breaks(name, fmt.Sprintf("it takes %d units of key %q, and counts %d of key %q", a.Costs[i], a.Keys[i], cost, key)))
		}
		if (!a.own() || r.Anchor == limit.AnchorStart) && (within == nil || r.SendWithin < *within) {
			within = &r.SendWithin
		}
	}
	if (within == nil) != (a.SendWithin == nil) || within != nil && *within != *a.SendWithin {
		v.found(openRule, a.breaks("", "it may be sent for another time than the send_within of its limits"))
	}
}

// openUntil is the latest moment at which the request of an open attempt that has started can reach the API, as claims
// reckon it (occupiedSQL); nil: not known before it ends.
func (v *verifier) openUntil(a *attempt, name string) *time.Time {
	h := v.versions[name]
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

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.999999Z") }
