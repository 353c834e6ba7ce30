package dispatcher

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/callq/callq/internal/budget"
	"github.com/callq/callq/internal/handoff"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/policy"
	"github.com/callq/callq/internal/schema"
	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
)

const (
	// needsWithin is how long Redis may take: a claim holds the workers' capacity meanwhile.
	needsWithin = 250 * time.Millisecond
	needsAgain  = 2 * time.Second // when a Redis that was away is asked again, and the budgets in force are read again
	mendEvery   = time.Second     // how often what a budget promised is held against the open attempts
	promisedFor = 24 * time.Hour  // longer than an attempt takes
)

// needs hold the claims of a queue to what its budgets have, so that no call is started to be turned away. A claim asks Redis under
// the lock of the workers' capacity, so no other claim promises units meanwhile. But whoever draws without a promise may take what a
// call needs: then the call waits in its handler. It is used by one goroutine.
type needs struct {
	*budget.Store
	sender  *handoff.Broker
	metrics *metrics
	readAt  time.Time            // when the budgets in force were read
	mended  map[string]time.Time // by budget; see mend
	refused map[string]bool      // by queue: a budget.LastingError was logged
}

func newNeeds(cfg *Config, sender *handoff.Broker, m *metrics) needs {
	store := &budget.Store{DB: cfg.db, Redis: cfg.Budgets, Log: cfg.Logger, Within: needsWithin, Again: needsAgain}
	return needs{Store: store, sender: sender, metrics: m, mended: map[string]time.Time{}, refused: map[string]bool{}}
}

// need is what each call of a queue draws of a budget.
type need struct {
	budget.Units
	open bool // while Redis is away, calls are claimed as if there were no need
}

func (n *needs) of(ctx context.Context, units map[string]int64, now time.Time) (list []need, err error) {
	if len(units) > 0 && now.Sub(n.readAt) > needsAgain {
		if err := n.Read(ctx); err != nil {
			return nil, err
		}
		n.readAt = now
	}
	for _, name := range slices.Sorted(maps.Keys(units)) {
		e, err := n.Rule(ctx, name)
		if err != nil {
			return nil, fmt.Errorf("budget %q: %w", name, err)
		}
		list = append(list, need{budget.Units{Name: name, Rule: e.Rule, N: units[name]}, e.Open})
	}
	return list, nil
}

// unbound reports whether calls are claimed as if there were no need. They are not where each draw would be an error.
func (d need) unbound(err error) bool { return d.open && !budget.Lasting(err) }

// ofKeys is a need of each of these keys, or, if its budget is not per key, the one of all.
func (d need) ofKeys(keys []string) []budget.Units {
	if !d.Rule.PerKey {
		return []budget.Units{d.Units}
	}
	units := make([]budget.Units, len(keys))
	for i, key := range keys {
		units[i] = d.Units
		units[i].Key = key
	}
	return units
}

func (n *needs) look(ctx context.Context, units []budget.Units) (states []budget.State, err error) {
	err = n.Ask(ctx, units[:1], func(ctx context.Context) (err error) {
		states, err = budget.Look(ctx, n.Redis, units...)
		return err
	})
	return states, err
}

// short says for how long no call of a queue may be claimed: a budget that all keys share lacks units, or Redis is away and a budget
// is closed, or what is wrong with a budget does not pass: that holds up this queue alone. It begins no transaction.
func (n *needs) short(ctx context.Context, queue dueQueue, now time.Time) (wait time.Duration, err error) {
	list, err := n.of(ctx, queue.Needs, now)
	var lasting error
	if budget.Lasting(err) {
		lasting, wait, err = err, needsAgain, nil
	}
	for _, d := range list {
		states, err := n.look(ctx, []budget.Units{d.Units})
		own := time.Duration(0)
		if budget.Lasting(err) {
			lasting = fmt.Errorf("budget %q: %w", d.Name, err)
		}
		switch {
		case err != nil && !d.unbound(err):
			own = needsAgain
		case err == nil && !d.Rule.PerKey && states[0].Free < d.N:
			own = max(minGap, min(states[0].Until, pollLater))
		}
		if own > 0 {
			n.metrics.short.WithLabelValues(d.Name, queue.Name).Inc()
		}
		wait = max(wait, own)
	}
	if lasting != nil && !n.refused[queue.Name] {
		n.Log.WarnContext(ctx, "queue not claimed until a budget it needs is mended", "queue", queue.Name, "err", lasting)
	}
	n.refused[queue.Name] = lasting != nil
	return wait, err
}

// bound adds the budgets to what the limits of a claim's queue allow. To choose, a budget is a limit of which each call takes 1.
func (n *needs) bound(ctx context.Context, conn *schema.Conn, list *candidates, now time.Time) (err error) {
	if list.needs, err = n.of(ctx, list.queue.Needs, now); err == nil && len(list.needs) > 0 {
		err = n.sender.Open(ctx)
	}
	if err != nil {
		return err
	}
	for _, d := range list.needs {
		units := d.ofKeys(list.keys)
		if len(units) == 0 {
			continue
		}
		states, away := n.look(ctx, units)
		if away == nil && now.Sub(n.mended[d.Name]) > mendEvery && slices.ContainsFunc(states, func(s budget.State) bool { return s.Free-s.Promised < d.N }) {
			n.mended[d.Name] = now
			if err := n.mend(ctx, conn, units); err != nil {
				return err
			}
			states, away = n.look(ctx, units)
		}
		rate := d.Rule.Rate
		list.head.limits = append(list.head.limits, policy.LockedLimit{Name: d.limit(), Units: rate.Units, Window: rate.Window, PerKey: d.Rule.PerKey})
		q := limit.Quota{PerKey: d.Rule.PerKey, Most: 1, Room: map[string]int64{}}
		list.head.Admission = append(list.head.Admission, q)
		isShort := false
		for i, u := range units {
			switch {
			case away == nil:
				q.Room[u.Key] = max(0, states[i].Free-states[i].Promised) / d.N
			case d.unbound(away):
				q.Room[u.Key] = math.MaxInt64
			}
			isShort = isShort || q.Room[u.Key] == 0
		}
		list.opens(d, units, states)
		if isShort {
			n.metrics.short.WithLabelValues(d.Name, list.queue.Name).Inc()
		}
	}
	return nil
}

// limit is the name of the budget among limits: of these none has a space.
func (d need) limit() string { return "budget " + d.Name }

// opens notes when a budget has units for one call more; without states, Redis is away.
func (c *candidates) opens(d need, units []budget.Units, states []budget.State) {
	for i, u := range units {
		wait := needsAgain
		if states != nil {
			wait = states[i].Until
		}
		c.head.next[limitKey{d.limit(), u.Key}] = c.now.Add(wait)
	}
}

// promise notes what the chosen calls will draw, before their attempts can: a draw takes from its promise, and the attempt's end
// removes the rest. It reports whether the claim may be committed. If it is not, no attempt is open, and mend removes the promises.
func (n *needs) promise(ctx context.Context, list *candidates, b *batch) bool {
	for _, d := range list.needs {
		if len(b.chosen) == 0 {
			break
		}
		units, states := d.ofKeys(list.keys), []budget.State(nil)
		err := n.Ask(ctx, units[:1], func(ctx context.Context) (err error) {
			if _, err = n.Redis.Pipelined(ctx, func(p redis.Pipeliner) error {
				for _, call := range b.chosen {
					hash := d.ofKeys([]string{call.Key})[0].Promised()
					p.HSet(ctx, hash, budget.Owner(n.sender.Database(), call.ID), d.N)
					p.PExpire(ctx, hash, promisedFor)
				}
				return nil
			}); err == nil {
				states, err = budget.Look(ctx, n.Redis, units...)
			}
			return err
		})
		if err != nil && !d.unbound(err) {
			return false
		}
		list.opens(d, units, states)
	}
	return true
}

// mend removes what is promised to calls that have no open attempt: their claim, their worker or Redis was cut short. It needs the
// capacity's lock.
func (n *needs) mend(ctx context.Context, conn *schema.Conn, units []budget.Units) error {
	of, calls := map[int64]budget.Units{}, []int64{}
	err := n.Ask(ctx, units[:1], func(ctx context.Context) error {
		owners := make([]*redis.StringSliceCmd, len(units))
		_, err := n.Redis.Pipelined(ctx, func(p redis.Pipeliner) error {
			for i, u := range units {
				owners[i] = p.HKeys(ctx, u.Promised())
			}
			return nil
		})
		for i, u := range units {
			for _, owner := range owners[i].Val() {
				text, own := strings.CutPrefix(owner, n.sender.Database()+":")
				if call, err := strconv.ParseInt(text, 10, 64); own && err == nil {
					of[call], calls = u, append(calls, call)
				}
			}
		}
		return err
	})
	if err != nil || len(calls) == 0 {
		return nil //nolint:nilerr // Redis is away: another claim mends it
	}
	rows, _ := conn.Query(ctx, endedSQL, calls)
	ended, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return fmt.Errorf("look for what was promised to attempts that have ended: %w", err)
	}
	_ = n.Ask(ctx, units[:1], func(ctx context.Context) error { // or another claim does
		_, err := n.Redis.Pipelined(ctx, func(p redis.Pipeliner) error {
			for _, call := range ended {
				p.HDel(ctx, of[call].Promised(), budget.Owner(n.sender.Database(), call))
			}
			return nil
		})
		return err
	})
	return nil
}

const endedSQL = `
SELECT p.id FROM unnest($1::bigint[]) AS p (id)
WHERE NOT EXISTS (SELECT FROM callq.call_open o WHERE o.call_id BETWEEN p.id AND p.id)`
