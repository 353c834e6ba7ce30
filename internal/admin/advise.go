package admin

import (
	"cmp"
	"context"
	"time"

	"github.com/callq/callq/internal/advise"
	"github.com/callq/callq/internal/limit"
)

// ReadAdvice finds the limit that fits what the API refused under this one; nil: there is none of this name.
func ReadAdvice(ctx context.Context, pool Pool, name string) (*advise.Advice, error) {
	type replay struct {
		limit    advise.Limit
		requests []advise.Request
		key      *string
	}
	read, err := snapshot(ctx, pool, func(r *reader) *replay {
		limits := r.limits([]string{name}, nil)
		attempts := list[chargedAttempt](r, "read the limit's attempts", chargedAttemptsSQL, name)
		if len(limits) == 0 || r.err != nil {
			return nil
		}
		l := limits[0]
		found := &replay{limit: advise.Limit{Name: l.Name, PerKey: l.PerKey, CountCost: l.CountCost, Changed: l.ChangedAt, Evenly: l.EvenUntil != nil}}
		if l.PerKey && len(attempts) > 0 {
			l.key = refusedMost(attempts)
			found.key = &l.key
			_, found.limit.OwnRate = l.Overrides[l.key]
		}
		found.limit.Rate = l.rate()
		for _, a := range attempts {
			if !l.PerKey || a.Key == l.key {
				found.requests = append(found.requests, a.request())
			}
		}
		return found
	})
	if err != nil || read == nil {
		return nil, err
	}
	advice := advise.For(read.limit, read.requests) // takes a second or two, without a transaction
	advice.Key = read.key
	return &advice, nil
}

// chargedAttempt is an attempt that a limit was charged for.
type chargedAttempt struct {
	Key       string    `db:"key"`
	Cost      int64     `db:"cost"`
	ClaimedAt time.Time `db:"claimed_at"`
	StartedAt time.Time `db:"started_at"`
	Until     time.Time `db:"until"`
	Refused   bool      `db:"refused"`
	Answered  bool      `db:"answered"`
}

func (a chargedAttempt) request() advise.Request {
	r := advise.Request{Earliest: a.StartedAt, Latest: a.Until, Cost: a.Cost}
	switch {
	case a.Refused:
		r.Answer = advise.Refused
	case !a.Answered:
		r.Answer = advise.Unknown
	}
	if a.Until.Equal(limit.Unknown()) || r.Latest.Before(r.Earliest) {
		r.Latest = r.Earliest
	}
	r.Held = max(0, r.Latest.Sub(a.ClaimedAt))
	return r
}

// refusedMost is the key that was refused most; of several the one that was sent most.
func refusedMost(attempts []chargedAttempt) string {
	type tally struct {
		key           string
		refused, sent int
	}
	tallies := map[string]tally{}
	for _, a := range attempts {
		t := tallies[a.Key]
		t.key, t.sent = a.Key, t.sent+1
		if a.Refused {
			t.refused++
		}
		tallies[a.Key] = t
	}
	var most tally
	for _, t := range tallies {
		if cmp.Or(t.refused-most.refused, t.sent-most.sent, cmp.Compare(most.key, t.key)) > 0 || most.sent == 0 {
			most = t
		}
	}
	return most.key
}

// The newest attempts under a limit. Those of the newest calls stand for the latest ones, as the ledger has no index by time.
// A 503 that is no refusal may be one all the same: it tells nothing. A limit that few calls use is found among the newest of all.
const chargedAttemptsSQL = `
SELECT c.key, c.cost, CASE WHEN a.run IS NULL THEN a.claimed_at ELSE a.started_at END AS claimed_at, a.started_at, c.until, -- in a run it waited for its turn
    a.outcome = 'refused' OR a.code IS NOT DISTINCT FROM 429 AS refused, coalesce(a.code NOT IN (503, 529), false) OR a.outcome = 'done' AS answered
FROM (
    SELECT call_id, attempt, run, claimed_at, started_at, code, outcome, charged
    FROM public.call_attempts ORDER BY call_id DESC, attempt DESC LIMIT 100000
) a
CROSS JOIN LATERAL jsonb_to_recordset(a.charged) AS c ("limit" text, key text, cost bigint, until timestamptz)
WHERE c."limit" = $1 AND a.started_at IS NOT NULL
ORDER BY a.call_id DESC, a.attempt DESC
LIMIT 10000`
