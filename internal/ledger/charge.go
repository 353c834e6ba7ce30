package ledger

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/callq/callq/internal/limit"
)

// Opened is what an open attempt's charges are worked out from. Once the attempt has started, nothing of it changes but Epoch, if
// the database is restored.
type Opened struct {
	Epoch  string
	Task   string
	Cost   int64
	Limits []string // that it is charged to
	Keys   []string // of the limits, in their order; "" where one is not per key
	Costs  []int64  // likewise

	From       time.Time      // its start, from which arrivals are offsets; the claim if no start is recorded
	SendWithin *time.Duration // of one that has started; nil: no gate bounds its request
}

// opened is a row of lockOpenSQL.
type opened struct {
	Nth int // of the closings
	Opened
	Acked     *time.Duration `db:"acked"`
	Overtaken *time.Duration `db:"overtaken"`
	Former    bool           `db:"former"` // of a former epoch
}

// rule is a limit as charges follow from it. Version is another whenever its row has changed.
type rule struct {
	Name    string
	Version string
	Epoch   string
	Anchor  limit.Anchor // "": by the task
	Window  time.Duration
	limit.Unanswered
	Width     time.Duration // of its buckets
	PerKey    bool
	CountCost bool
	KnownAt   *time.Time
	Queues    []string
}

// charge is one attempt's use of one limit, as the ledger has it. A concurrency limit's Until is "", for the close's moment.
type charge struct {
	Limit string `json:"limit"`
	Key   string `json:"key"`
	Cost  int64  `json:"cost"`
	Until string `json:"until"`
}

// bill is what the closings of one statement are charged, and what they free: closeSQL's arguments.
type bill struct {
	rules    map[string]rule
	arrived  []*time.Time
	proofs   []*string    // what the arrivals rest on, where that is not the attempts' own ends
	ends     []*time.Time // of those charged to a concurrency limit: a bound on their end, where no earlier one is proven
	charges  []*string
	used     map[usageRow]int64
	freed    map[[2]string]bool // queue and key
	versions map[string]string  // of the limits that it goes by; "": there is no such limit any more
}

// usageRow is a row of call_usage.
type usageRow struct {
	limit, key string
	bucket     int64 // its end, in µs
	side       int32 // -1: a failover found the attempt open; 0: its until is unknown
}

type entry struct {
	usageRow
	cost int64
}

// newBill charges closings whose attempts are known by rules, and none to limits that are gone.
func newBill(closings []Closing, rules map[string]rule) (*bill, error) {
	n := len(closings)
	b := &bill{
		rules: rules, arrived: make([]*time.Time, n), proofs: make([]*string, n), ends: make([]*time.Time, n), charges: make([]*string, n),
		used: map[usageRow]int64{}, freed: map[[2]string]bool{}, versions: map[string]string{},
	}
	for i, c := range closings {
		b.free(c)
		if c.Arrival == nil {
			continue
		}
		if err := b.add(i, c); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// add charges an attempt to each of its limits. A claim by cost other than 1 is charged by the reported cost; of a claim by 1
// the limit's present count_cost decides. An attempt without limits keeps a bound on its arrival that holds for any slack: a
// limit may be added later.
func (b *bill) add(i int, c Closing) error {
	arrival := c.bounded()
	var charges []charge
	var used []entry
	former, rests := c.former && c.Outcome == "lost", limit.ProofAnswer
	for k, name := range c.Opened.Limits {
		r, ok := b.rules[name]
		if !ok {
			continue
		}
		cost := c.Opened.Costs[k]
		if (r.CountCost || cost != 1) && c.Settled != nil {
			cost = *c.Settled
		}
		ofFormer := c.Opened.Epoch != r.Epoch
		former = former || ofFormer
		if former { // it is charged as of now, for what it was charged there is unknown
			arrival.SentBy, arrival.Lost = nil, true
		}
		charged := charge{Limit: name, Key: c.Opened.Keys[k], Cost: cost}
		until, proof := c.until(arrival, r)
		rests = rests.Weaker(proof)
		switch {
		case proof == limit.NoProof:
			b.arrived[i] = new(limit.Unknown())
			charged.Until = jsonTime(limit.Unknown())
			used = append(used, entry{usageRow{name, charged.Key, limit.Unknown().UnixMicro(), 0}, cost})
		case r.Window > 0:
			b.arrived[i] = later(b.arrived[i], until)
			charged.Until = jsonTime(until)
			used = append(used, entry{usageRow{name, charged.Key, r.bucket(until, ofFormer), 1}, cost})
		default: // the close is later than the start
			b.ends[i] = later(b.ends[i], until)
			if arrival.EndBy == nil {
				used = append(used, entry{usageRow{name, charged.Key, until.UnixMicro(), 1}, cost})
			}
		}
		charges = append(charges, charged)
	}
	if rests != limit.ProofAnswer {
		b.proofs[i] = nonZero(string(rests))
	}
	for _, u := range used {
		if former && u.side != 0 {
			u.side = -1
		}
		if u.cost > 0 {
			b.used[u.usageRow] += u.cost
		}
	}
	switch {
	case b.arrived[i] != nil:
	case b.ends[i] != nil:
		b.arrived[i] = &c.Opened.From // the close is later
	default:
		b.arrived[i] = new(c.at(arrival.Unlimited()))
		return nil
	}
	text, err := json.Marshal(charges)
	b.charges[i] = new(string(text))
	return err
}

// jsonTime is a time as Postgres writes it in JSON.
func jsonTime(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.999999-07:00") }

// until is until when the attempt counts for a limit, and what that rests on. For a concurrency limit it is a bound on its end,
// where no earlier one is proven.
func (c Closing) until(a limit.Arrival, r rule) (time.Time, limit.Proof) {
	switch {
	case r.Window > 0:
		offset, proof := a.Until(r.anchor(c.Opened.Task), r.Unanswered)
		return c.at(offset), proof
	case a.EndBy != nil:
		return c.Opened.From, limit.ProofAnswer
	}
	offset, proof := a.Ended(r.Unanswered)
	return c.at(offset), proof
}

// charged reports whether anything is charged.
func (b *bill) charged() bool {
	return slices.ContainsFunc(b.charges, func(text *string) bool { return text != nil })
}

// free notes the keys whose flows units come free for that no claim could foresee.
func (b *bill) free(c Closing) {
	settledLess := c.Settled != nil && *c.Settled < c.Opened.Cost
	for k, name := range c.Opened.Limits {
		r := b.rules[name]
		b.versions[name] = r.Version
		if r.PerKey && (c.Arrival == nil || r.Window == 0 || r.CountCost && settledLess) {
			for _, queue := range r.Queues {
				b.freed[[2]string{queue, c.Opened.Keys[k]}] = true
			}
		}
	}
}

// args adds the bill to the arguments of closeSQL.
func (b *bill) args(args map[string]any) {
	used := slices.SortedFunc(maps.Keys(b.used), func(u, v usageRow) int { // in the order of their locks
		return cmp.Or(cmp.Compare(u.limit, v.limit), cmp.Compare(u.key, v.key), cmp.Compare(u.bucket, v.bucket), cmp.Compare(u.side, v.side))
	})
	freed, names := slices.Collect(maps.Keys(b.freed)), slices.Collect(maps.Keys(b.versions))
	maps.Copy(args, map[string]any{
		"arrived":      b.arrived,
		"proofs":       sparse(b.proofs, func(text *string) *string { return text }),
		"ends":         sparse(b.ends, func(t *time.Time) *time.Time { return t }),
		"charges":      sparse(b.charges, func(text *string) *string { return text }),
		"limits":       names,
		"versions":     column(names, func(name string) string { return b.versions[name] }),
		"used_limits":  column(used, func(u usageRow) string { return u.limit }),
		"used_keys":    column(used, func(u usageRow) string { return u.key }),
		"buckets":      column(used, func(u usageRow) time.Time { return time.UnixMicro(u.bucket) }),
		"sides":        column(used, func(u usageRow) int32 { return u.side }),
		"costs":        column(used, func(u usageRow) int64 { return b.used[u] }),
		"freed_queues": column(freed, func(f [2]string) string { return f[0] }),
		"freed_keys":   column(freed, func(f [2]string) string { return f[1] }),
	})
}

// bounded is the arrival, whose last write the gate bounds: it lets a request's first byte through within send_within.
func (c Closing) bounded() limit.Arrival {
	a := *c.Arrival
	if c.Opened.SendWithin != nil {
		a.Written = min(a.Written, *c.Opened.SendWithin)
	}
	if c.acked != nil {
		a.Acked = c.acked
	}
	if c.overtaken != nil {
		a.Later = c.overtaken
	}
	if c.Host == "" && a.SentBy != nil { // nothing will prove its arrival
		a.SentBy, a.Lost = nil, true
	}
	return a
}

// at is the moment so long after the start, rounded up to what Postgres keeps.
func (c Closing) at(offset time.Duration) time.Time { return c.Opened.From.Add(*up(&offset)) }

func (r rule) anchor(task string) limit.Anchor {
	if r.Anchor == "" && task == "http" {
		return limit.AnchorStart
	}
	return cmp.Or(r.Anchor, limit.AnchorFinish)
}

// bucket is the label of the bucket that a charge goes to: its end, in µs. After a failover, new attempts are charged to
// buckets after known_at (internal/policy).
func (r rule) bucket(until time.Time, former bool) int64 {
	if r.KnownAt != nil && !former {
		until = *later(&until, r.KnownAt.Add(r.Width))
	}
	at, width := until.UnixMicro(), r.Width.Microseconds()
	return at - at%width + width
}

func later(a *time.Time, b time.Time) *time.Time {
	if a == nil || b.After(*a) {
		return &b
	}
	return a
}
