package verify

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/callq/callq/internal/limit"
	"github.com/jackc/pgx/v5"
)

// ShareUse is what a share of a limit had since its limit was last changed, of what was claimed.
type ShareUse struct {
	Limit   string  `json:"limit"`
	Share   string  `json:"share"`
	Percent float64 `json:"percent"` // that it is guaranteed
	Units   int64   `json:"units"`   // that it had, lent ones too
	// LeastPercent is the least that it had of any ten windows at whose beginning it had more than its part waiting, while the limit was
	// used up; nil: there were none. It may be less than Percent where something else kept its calls waiting: a pause, another limit, hours, or
	// workers without a slot.
	LeastPercent *float64   `json:"least_percent"`
	LeastFrom    *time.Time `json:"least_from"`      // when those began
	LongestWait  float64    `json:"longest_wait_ms"` // of a first attempt, from when it could be made until it was claimed
}

// shareClaim is an attempt that was claimed for a share.
type shareClaim struct {
	Limit string    `db:"limit_name"`
	Share string    `db:"share"`
	Key   string    `db:"key"` // of a limit per key
	Units int64     `db:"units"`
	At    time.Time `db:"claimed_at"`
	Due   time.Time `db:"due_at"` // when it could be made; At where that is not known any more

	Shape   limit.Shape   `db:"shape"`
	Rate    int64         `db:"rate"`
	Window  time.Duration `db:"window_size"`
	Percent float64       `db:"percent"`
}

// The ledger does not have when a retry was due.
const shareClaimsSQL = `
SELECT e.key AS limit_name, e.value AS share, CASE WHEN l.per_key THEN a.key ELSE '' END AS key,
    CASE WHEN l.count_cost THEN a.cost ELSE 1 END AS units, a.claimed_at, least(coalesce(q.due_at, a.claimed_at), a.claimed_at) AS due_at,
    l.shape, l.rate, l.window_size, (l.shares ->> e.value)::float8 AS percent
FROM (
    SELECT call_id, attempt, key, coalesce(settled, cost) AS cost, claimed_at, shares FROM public.call_attempts
    WHERE shares IS NOT NULL AND started_at IS NOT NULL
    UNION ALL
    SELECT call_id, attempt, key, cost, claimed_at, shares FROM callq.call_open WHERE shares IS NOT NULL
) a
CROSS JOIN LATERAL jsonb_each_text(a.shares) e
JOIN callq.call_limits l ON l.name = e.key AND l.shares ? e.value
LEFT JOIN LATERAL (
    SELECT greatest(run_at, created_at) AS due_at FROM public.call_queue WHERE id = a.call_id AND attempts = 1 AND a.attempt = 1
) q ON true
WHERE a.claimed_at > greatest(l.applied_at, @since::timestamptz)
ORDER BY 1, 3, 5`

// readShares adds up what shares had.
func (v *verifier) readShares(ctx context.Context) error {
	claims, err := collect(ctx, v.tx, pgx.RowToStructByName[shareClaim], shareClaimsSQL, pgx.NamedArgs{"since": v.since})
	if err != nil {
		return err
	}
	for len(claims) > 0 {
		n := slices.IndexFunc(claims, func(c shareClaim) bool { return c.Limit != claims[0].Limit || c.Key != claims[0].Key })
		if n < 0 {
			n = len(claims)
		}
		v.report.addShares(claims[:n])
		claims = claims[n:]
	}
	return nil
}

// addShares adds what the shares of one limit, or of a key of one, had. The claims are in their order.
func (r *Report) addShares(claims []shareClaim) {
	byShare := map[string][]shareClaim{}
	for _, c := range claims {
		byShare[c.Share] = append(byShare[c.Share], c)
	}
	for name, own := range byShare {
		i := slices.IndexFunc(r.Shares, func(s ShareUse) bool { return s.Limit == own[0].Limit && s.Share == name })
		if i < 0 {
			i, r.Shares = len(r.Shares), append(r.Shares, ShareUse{Limit: own[0].Limit, Share: name, Percent: own[0].Percent})
		}
		s := &r.Shares[i]
		for _, c := range own {
			s.Units += c.Units
			s.LongestWait = max(s.LongestWait, float64(c.At.Sub(c.Due).Microseconds())/1000)
		}
		if least, from := leastPart(claims, own); from != nil && (s.LeastPercent == nil || least < *s.LeastPercent) {
			s.LeastPercent, s.LeastFrom = &least, from
		}
	}
	slices.SortFunc(r.Shares, func(a, b ShareUse) int { return cmp.Or(cmp.Compare(a.Limit, b.Limit), cmp.Compare(a.Share, b.Share)) })
}

const (
	leastOf    = 10          // windows: of few, whose units came first in them would decide
	atOnceSpan = time.Second // of a limit without a window
)

// leastPart is the least part, in percent, that a share had of ten windows at whose beginning more than its part of them waited, and in
// which as much was claimed as five have; nil: there were none.
func leastPart(all, own []shareClaim) (least float64, from *time.Time) {
	rate := limit.Rate{Units: own[0].Rate, Window: own[0].Window, Shape: own[0].Shape}
	span := leastOf * cmp.Or(rate.Span(), atOnceSpan)
	for _, spell := range spells(own) {
		for begin := spell[0]; !begin.Add(span).After(spell[1]); begin = begin.Add(span) {
			sum, had := unitsWithin(all, begin, begin.Add(span)), unitsWithin(own, begin, begin.Add(span))
			part := 100 * float64(had) / float64(max(sum, 1))
			waits := 100*float64(waitingAt(own, begin)) >= own[0].Percent*float64(sum)
			if waits && sum >= leastOf/2*rate.Units && (from == nil || part < least) {
				least, from = part, &begin
			}
		}
	}
	return least, from
}

// spells are the times in which some of the claims had yet to be made, though they could have been.
func spells(claims []shareClaim) (list [][2]time.Time) {
	for _, c := range slices.SortedFunc(slices.Values(claims), func(a, b shareClaim) int { return a.Due.Compare(b.Due) }) {
		if last := len(list) - 1; last >= 0 && !c.Due.After(list[last][1]) {
			list[last][1] = slices.MaxFunc([]time.Time{list[last][1], c.At}, time.Time.Compare)
			continue
		}
		list = append(list, [2]time.Time{c.Due, c.At})
	}
	return list
}

// waitingAt are the units of claims that could have been made at a time, and had not been.
func waitingAt(claims []shareClaim, at time.Time) (units int64) {
	for _, c := range claims {
		if !c.Due.After(at) && c.At.After(at) {
			units += c.Units
		}
	}
	return units
}

// unitsWithin are the units that were claimed within a time.
func unitsWithin(claims []shareClaim, from, to time.Time) (units int64) {
	first, _ := slices.BinarySearchFunc(claims, from, func(c shareClaim, t time.Time) int { return c.At.Compare(t) })
	for _, c := range claims[first:] {
		if !c.At.Before(to) {
			break
		}
		units += c.Units
	}
	return units
}
