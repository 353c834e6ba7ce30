package claim

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
	"github.com/callq/callq/internal/usage"
	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
)

const (
	needsWithin = 250 * time.Millisecond // for an answer of Redis
	promisedFor = 24 * time.Hour         // longer than an attempt takes
	repairEvery = time.Second            // how often what a budget promised is compared with the open attempts
)

// needs hold the claims of a queue to what its budgets have, so that no call is started to be turned away. Before a claim, peek reads
// what is free and what is promised to attempts that have not drawn it yet; after its commit, promise adds what its calls will draw. So
// no lock waits for Redis. Two dispatchers that claim at the same moment may give out the same units: then some calls wait in their
// handlers, as they do where others draw what was not promised to them. It is used by one goroutine.
type needs struct {
	*budget.Store
	sender   *handoff.Broker
	metrics  metrics
	readAt   time.Time            // when the budgets in force were read
	repaired map[string]time.Time // by budget; see repair
	refused  map[string]bool      // by queue: a budget.LastingError was logged
}

func newNeeds(cfg *Config, m metrics) needs {
	store := &budget.Store{DB: cfg.DB, Redis: cfg.Budgets, Log: cfg.Log, Within: needsWithin, Again: downRetry}
	return needs{Store: store, sender: cfg.Sender, metrics: m, repaired: map[string]time.Time{}, refused: map[string]bool{}}
}

// need is what each call of a queue draws of a budget, and how that was.
type need struct {
	budget.Units
	open   bool                    // while Redis is away, calls are claimed as if there were no need
	away   error                   // Redis did not tell
	states map[string]budget.State // by key; "" where the budget is not per key
}

// limit is the name of the budget among limits: of these none has a space.
func (d *need) limit() string { return "budget " + d.Name }

// unbound reports whether calls are claimed as if there were no need. They are not where each draw would be an error.
func (d *need) unbound() bool { return d.away != nil && d.open && !budget.Lasting(d.away) }

// of is the need of a key.
func (d *need) of(key string) budget.Units {
	u := d.Units
	if d.Rule.PerKey {
		u.Key = key
	}
	return u
}

// peek reads what the budgets of a queue have, for the keys that a claim may meet. It returns for how long no call of the queue may be
// claimed: a budget that all keys share lacks units, or Redis is away and a budget is closed, or what is wrong with a budget does not
// pass: that holds up this queue alone.
func (n *needs) peek(ctx context.Context, queue dueQueue, flows int, now time.Time) (list []need, wait time.Duration, err error) {
	if len(queue.Needs) == 0 {
		return nil, 0, nil
	}
	if now.Sub(n.readAt) > downRetry {
		if err := n.Read(ctx); err != nil {
			return nil, 0, err
		}
		n.readAt = now
	}
	if err := n.sender.Open(ctx); err != nil { // promises carry the database's id
		return nil, 0, err
	}
	var lasting error
	for _, name := range slices.Sorted(maps.Keys(queue.Needs)) {
		d := need{Units: budget.Units{Name: name, N: queue.Needs[name]}}
		e, err := n.Rule(ctx, name)
		if err == nil {
			d.Rule, d.open = e.Rule, e.Open
			err = n.read(ctx, &d, queue.Name, flows, now)
		}
		if err != nil && !budget.Lasting(err) {
			return nil, 0, err
		} else if err != nil {
			d.away = err
		}
		own := time.Duration(0)
		switch s := d.states[""]; {
		case d.unbound():
		case d.away != nil:
			own = downRetry
		case !d.Rule.PerKey && s.Free-s.Promised < d.N:
			own = max(MinGap, min(s.Until, pollLater))
		}
		if own > 0 {
			n.metrics.short.WithLabelValues(d.Name, queue.Name).Inc()
		}
		if d.away != nil {
			n.metrics.away.WithLabelValues(d.Name, queue.Name).Inc()
		}
		if budget.Lasting(d.away) {
			lasting = fmt.Errorf("budget %q: %w", d.Name, d.away)
		}
		list, wait = append(list, d), max(wait, own)
	}
	if lasting != nil && !n.refused[queue.Name] {
		n.Log.WarnContext(ctx, "queue not claimed until a budget it needs is repaired", "queue", queue.Name, "err", lasting)
	}
	n.refused[queue.Name] = lasting != nil
	return list, wait, nil
}

// read reads the states of a budget. Where they are short, it removes what crashes left promised.
func (n *needs) read(ctx context.Context, d *need, queue string, flows int, now time.Time) error {
	keys := []string{""}
	if d.Rule.PerKey {
		rows, _ := n.DB.Query(ctx, needyKeysSQL, queue, flows) // CollectRows returns its error
		var err error
		if keys, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil {
			return fmt.Errorf("read the keys that wait: %w", err)
		}
	}
	if len(keys) == 0 {
		return nil
	}
	units := make([]budget.Units, len(keys))
	for i, key := range keys {
		units[i] = d.of(key)
	}
	for range 2 {
		d.away = n.Ask(ctx, units[:1], func(ctx context.Context) error {
			states, err := budget.Peek(ctx, n.Redis, units...)
			d.states = make(map[string]budget.State, len(states))
			for i, s := range states {
				d.states[keys[i]] = s
			}
			return err
		})
		isShort := func(key string) bool { s := d.states[key]; return s.Promised > 0 && s.Free-s.Promised < d.N }
		if d.away != nil || now.Sub(n.repaired[d.Name]) < repairEvery || !slices.ContainsFunc(keys, isShort) {
			break
		}
		n.repaired[d.Name] = now
		if err := n.repair(ctx, units); err != nil {
			return err
		}
	}
	return nil
}

// The flows behind the one that was served last come first. A claim may meet others too: these have their turn in the next one.
const needyKeysSQL = `
WITH served AS (SELECT coalesce(served_key, '') AS key FROM callq.call_queues WHERE name = $1)
SELECT key FROM (
    SELECT key FROM callq.call_flows
    WHERE queue = $1 AND wake_at IS NULL AND calls > 0 AND key > (SELECT key FROM served)
    ORDER BY key LIMIT $2
) behind
UNION
SELECT key FROM (
    SELECT key FROM callq.call_flows
    WHERE queue = $1 AND wake_at IS NULL AND calls > 0 AND key <= (SELECT key FROM served)
    ORDER BY key LIMIT $2
) before
UNION
SELECT unnest(coalesce(keys, ARRAY[key])) FROM (
    SELECT key, keys FROM callq.call_inbox
    WHERE queue = $1 AND at <= clock_timestamp() AND ids IS NOT NULL
    ORDER BY at LIMIT $2
) news`

// bind adds the budgets to what the limits of a claim's queue allow. To choose, a budget is a limit of which each call takes 1.
func (n *needs) bind(list *candidates, needs []need) {
	for _, d := range needs {
		rate := d.Rule.Rate
		list.head.limits = append(list.head.limits, policy.LockedLimit{Name: d.limit(), Units: rate.Units, Window: rate.Window, PerKey: d.Rule.PerKey})
		q := limit.Quota{PerKey: d.Rule.PerKey, Most: 1, Room: map[string]int64{}}
		list.head.Admission = append(list.head.Admission, q)
		keys := []string{""}
		if d.Rule.PerKey {
			keys = list.keys
		}
		isShort := false
		for _, key := range keys {
			wait := MinGap // the next claim knows the key
			if s, known := d.states[key]; known {
				q.Room[key], wait = max(0, s.Free-s.Promised)/d.N, s.Until
			}
			if d.unbound() {
				q.Room[key] = math.MaxInt64
			}
			list.head.nextLook[usage.Of{Limit: d.limit(), Key: key}] = list.now.Add(wait)
			isShort = isShort || q.Room[key] == 0
		}
		if isShort {
			n.metrics.short.WithLabelValues(d.Name, list.queue.Name).Inc()
		}
	}
}

// promise notes what the chosen calls will draw, before their attempts are handed over: a draw takes from its promise, and the
// attempt's end removes the rest. What Redis does not take, others may be given.
func (n *needs) promise(ctx context.Context, needs []need, b *batch) {
	for _, d := range needs {
		if len(b.chosen) == 0 {
			return
		}
		_ = n.Ask(ctx, []budget.Units{d.Units}, func(ctx context.Context) error {
			_, err := n.Redis.Pipelined(ctx, func(p redis.Pipeliner) error {
				for _, call := range b.chosen {
					hash := d.of(call.Key).Promised()
					p.HSet(ctx, hash, budget.Owner(n.sender.Database(), call.ID), d.N)
					p.PExpire(ctx, hash, promisedFor)
				}
				return nil
			})
			return err
		})
	}
}

// repair removes what is promised to calls that have no open attempt: their worker or Redis was cut short.
func (n *needs) repair(ctx context.Context, units []budget.Units) error {
	of, calls := map[int64]budget.Units{}, []int64{}
	pipeline := func(queue func(context.Context, redis.Pipeliner)) error {
		return n.Ask(ctx, units[:1], func(ctx context.Context) error {
			_, err := n.Redis.Pipelined(ctx, func(p redis.Pipeliner) error { queue(ctx, p); return nil })
			return err
		})
	}
	owners := make([]*redis.StringSliceCmd, len(units))
	if err := pipeline(func(ctx context.Context, p redis.Pipeliner) {
		for i, u := range units {
			owners[i] = p.HKeys(ctx, u.Promised())
		}
	}); err != nil {
		return nil //nolint:nilerr // Redis is away: another claim repairs it
	}
	for i, u := range units {
		for _, owner := range owners[i].Val() {
			text, own := strings.CutPrefix(owner, n.sender.Database()+":")
			if call, err := strconv.ParseInt(text, 10, 64); own && err == nil {
				of[call], calls = u, append(calls, call)
			}
		}
	}
	rows, _ := n.DB.Query(ctx, endedSQL, calls) // CollectRows returns its error
	ended, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return fmt.Errorf("look for what was promised to attempts that have ended: %w", err)
	}
	_ = pipeline(func(ctx context.Context, p redis.Pipeliner) { // or another claim does
		for _, call := range ended {
			p.HDel(ctx, of[call].Promised(), budget.Owner(n.sender.Database(), call))
		}
	})
	return nil
}

const endedSQL = `
SELECT p.id FROM unnest($1::bigint[]) AS p (id)
WHERE NOT EXISTS (SELECT FROM callq.call_open o WHERE o.call_id BETWEEN p.id AND p.id)`
