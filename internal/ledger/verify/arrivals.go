package verify

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/callq/callq/internal/limit"
)

// Arrivals is what the arrivals of a limit's requests rest on. A window rests on the weakest of what is in it.
type Arrivals struct {
	Limit    string `json:"limit"`
	Answered int64  `json:"answered"` // their own answers, or their handlers' ends: no assumption
	Later    int64  `json:"later"`    // an answer to a request that was written later to the same host
	Slack    int64  `json:"slack"`    // slack: somebody vouches for an API that reads at once
	Assumed  int64  `json:"assumed"`  // nothing: arrive_within had passed
	InDoubt  int64  `json:"in_doubt"` // they may still arrive, and count
	// Overdue is how many of Slack were answered more than slack after they were written, and OverdueBy the longest of
	// those times: if the API was not slow, but stood still, windows have held more than the rate.
	Overdue   int64 `json:"overdue"`
	OverdueBy int64 `json:"overdue_by_ms"`
	// Still is when hosts answered nothing that was asked of them, the last few times.
	Still []Standstill `json:"stood_still,omitempty"`
}

// Standstill is a time, of a second at least, in which a host answered nothing that was asked of it.
type Standstill struct {
	Host string    `json:"host"`
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
}

// arrivals add up attempts, in the order of their starts.
type arrivals struct {
	limits map[string]*Arrivals
}

func newArrivals() arrivals { return arrivals{map[string]*Arrivals{}} }

// add adds an attempt that was charged so.
func (s arrivals) add(a *attempt, charges []charge) {
	for _, c := range charges {
		of := s.limits[c.Limit]
		if of == nil {
			of = &Arrivals{Limit: c.Limit}
			s.limits[c.Limit] = of
		}
		of.add(a, c)
	}
}

func (of *Arrivals) add(a *attempt, c charge) {
	inDoubt := a.Finished == nil || c.Until != nil && c.Until.Equal(limit.Unknown())
	switch proof := limit.Proof(value(a.Proof)); {
	case inDoubt:
		of.InDoubt++
	case proof == "":
		of.Answered++
	case proof == limit.ProofLater:
		of.Later++
	case proof == limit.Assumed:
		of.Assumed++
	default:
		of.Slack++
		of.overdue(a, c)
	}
	if !inDoubt && a.Host != nil && a.SentBy != nil && a.Arrived != nil && a.Arrived.Sub(*a.SentBy) >= time.Second {
		of.stoodStill(Standstill{*a.Host, a.SentBy.UTC(), a.Arrived.UTC()})
	}
}

func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// overdue notes how long after it counted as arrived the attempt was answered.
func (of *Arrivals) overdue(a *attempt, c charge) {
	if a.Code == nil || a.Took == nil || a.Started == nil || c.Until == nil {
		return
	}
	if late := a.Started.Add(time.Duration(*a.Took) * time.Millisecond).Sub(*c.Until); late > 0 {
		of.Overdue++
		of.OverdueBy = max(of.OverdueBy, late.Milliseconds())
	}
}

// stoodStill adds a time to the last one of its host, if the two overlap.
func (of *Arrivals) stoodStill(s Standstill) {
	const kept = 5
	for i := len(of.Still) - 1; i >= 0; i-- {
		if last := &of.Still[i]; last.Host == s.Host && !s.From.After(last.To) {
			if s.To.After(last.To) {
				last.To = s.To
			}
			return
		}
	}
	if of.Still = append(of.Still, s); len(of.Still) > kept {
		of.Still = of.Still[1:]
	}
}

// report is what was added up, by limit.
func (s arrivals) report() []Arrivals {
	list := []Arrivals{}
	for _, of := range slices.SortedFunc(maps.Values(s.limits), func(x, y *Arrivals) int { return cmp.Compare(x.Limit, y.Limit) }) {
		list = append(list, *of)
	}
	return list
}
