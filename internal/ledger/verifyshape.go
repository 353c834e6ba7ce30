package ledger

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/callq/callq/internal/limit"
	"github.com/jackc/pgx/v5"
)

// spent is what an attempt took of a limit.
type spent struct {
	CallID  int64      `db:"call_id"`
	Attempt int32      `db:"attempt"`
	Key     string     `db:"key"`
	At      time.Time  `db:"at"`      // its start
	Cost    int64      `db:"cost"`    // what was claimed, or what was settled if that is less
	Settled int64      `db:"settled"` // what was settled, or claimed
	Above   int64      `db:"above"`   // how much more was settled than claimed
	Until   *time.Time `db:"until"`   // nil: not known yet
}

// verifyShape adds up the windows of a version that is no sliding window, in time order and per key.
func (v version) verifyShape(ctx context.Context, tx pgx.Tx, use *LimitUse) ([]Violation, error) {
	rows, err := tx.Query(ctx, spentSQL, v.Limit, v.PerKey, v.CountCost)
	if err != nil {
		return nil, err
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByName[spent])
	if err != nil {
		return nil, err
	}
	rate := limit.Rate{Units: v.Rate, Window: v.Window, Shape: v.Shape}
	byKey := map[string][]spent{}
	for _, s := range all {
		byKey[s.Key] = append(byKey[s.Key], s)
	}
	var found []Violation
	for key, list := range byKey {
		most, own := v.Overrides[key]
		if !own {
			most = rate.Most()
		}
		settled := slices.Clone(list)
		for i := range settled {
			settled[i].Cost = settled[i].Settled
		}
		all := takenAt(rate, settled)
		for i, taken := range takenAt(rate, list) {
			s := list[i]
			if s.At.Before(v.From) || v.To != nil && !s.At.Before(*v.To) {
				continue
			}
			if use.Starts++; !own {
				use.Most, use.MostSettled = max(use.Most, taken), max(use.MostSettled, all[i])
			}
			use.Above += s.Above
			if taken <= most {
				continue
			}
			detail := fmt.Sprintf("started at %s as number %d of %d", s.At.UTC(), taken, most)
			if key != "" {
				detail += " for key " + key
			}
			found = append(found, Violation{Limit: v.Limit, CallID: s.CallID, Attempt: s.Attempt, Detail: detail})
		}
	}
	slices.SortFunc(found, func(a, b Violation) int { return int(a.CallID - b.CallID) })
	return found[:min(len(found), violationsMost)], nil
}

const spentSQL = chargedSQL + `
SELECT call_id, attempt, key, at, least(cost, settled) AS cost, settled, greatest(settled - cost, 0) AS above, nullif(until, 'infinity') AS until FROM charges ORDER BY at, call_id`

// takenAt is, at the start of each of these, which are in order, how much was taken with it. Of a fixed window:
// of what had started by then, what has an until within the same window of the calendar, or later. Of a token
// bucket: how far from full it was, the most, over each moment s within the window, of what had started by then
// and has an until of s or later, less what came in since s.
func takenAt(rate limit.Rate, list []spent) []int64 {
	if rate.Algorithm == limit.TokenBucket {
		return takenOfBucket(rate, list)
	}
	cal, err := limit.ParseCalendar(rate.Period, rate.Timezone)
	type leaving struct {
		at   time.Time
		cost int64
	}
	var leave []leaving
	for _, s := range list {
		if s.Until == nil || err != nil { // of an unknown time zone: as a window that never ends
			continue
		}
		leave = append(leave, leaving{cal.End(*s.Until), s.Cost})
	}
	slices.SortFunc(leave, func(a, b leaving) int { return a.at.Compare(b.at) })
	taken := make([]int64, len(list))
	var sum int64
	for i, s := range list {
		sum += s.Cost
		for len(leave) > 0 && !leave[0].at.After(s.At) {
			sum -= leave[0].cost
			leave = leave[1:]
		}
		taken[i] = sum
	}
	return taken
}

func takenOfBucket(rate limit.Rate, list []spent) []int64 {
	if len(list) == 0 {
		return nil
	}
	perSecond := float64(rate.Units) / rate.Span().Seconds()
	zero := list[0].At
	came := func(t time.Time) float64 { return perSecond * t.Sub(zero).Seconds() }
	over := make([]spent, 0, len(list)) // by until
	for _, s := range list {
		if s.Until != nil {
			over = append(over, s)
		}
	}
	slices.SortStableFunc(over, func(a, b spent) int { return a.Until.Compare(*b.Until) })
	type moment struct {
		at    time.Time
		value float64 // what had come in by then, less what was over before
	}
	var best []moment // of the last window, the greatest first: none later is greater than one before
	taken := make([]int64, len(list))
	var started, before int64
	for i, s := range list {
		started += s.Cost
		for len(over) > 0 && !over[0].Until.After(s.At) {
			m := moment{*over[0].Until, came(*over[0].Until) - float64(before)}
			for len(best) > 0 && best[len(best)-1].value <= m.value {
				best = best[:len(best)-1]
			}
			best = append(best, m)
			before += over[0].Cost
			over = over[1:]
		}
		for len(best) > 0 && best[0].at.Before(s.At.Add(-rate.Window)) {
			best = best[1:]
		}
		greatest := came(s.At) - float64(before)
		if len(best) > 0 {
			greatest = max(greatest, best[0].value)
		}
		taken[i] = int64(math.Ceil(float64(started) - came(s.At) + greatest - 1e-6))
	}
	return taken
}
