package budget_test

import (
	"container/heap"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/callq/callq/internal/budget"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/redistest"
)

// event is a caller that draws, or, with a grant, one whose request has ended.
type event struct {
	at          time.Duration
	grant       *budget.Grant
	estimate, n int64
}

type events []event

func (e events) Len() int           { return len(e) }
func (e events) Less(i, j int) bool { return e[i].at < e[j].at }
func (e events) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)        { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := len(*e) - 1
	x := (*e)[last]
	*e = (*e)[:last]
	return x
}

// Requests draw a request and the tokens that they estimate, and say later what they were in truth, half more or less. The true
// tokens pass the rule by no more than what the requests in flight had estimated too low, and the rate is used.
//
//callq:guarantee 14
func TestEstimatesAreAdjusted(t *testing.T) {
	t.Parallel()
	const callers, most, seconds = 8, 150, 120
	client := redistest.New(t)
	bucket, window := rule(1000, time.Second, 1000), parsed(t, "1000/1s", limit.SlidingWindow, "")
	for name, r := range map[string]budget.Rule{"openai/bucket": bucket, "openai/window": window} {
		rng := rand.New(rand.NewPCG(7, 0))
		requests := budget.Units{Name: "openai/requests-" + name, Rule: rule(1000, time.Second, 1000), N: 1}
		tokens := budget.Units{Name: name, Rule: r}
		var queue events
		for range callers {
			heap.Push(&queue, event{})
		}
		var used []granted
		total := int64(0)
		for queue[0].at < seconds*time.Second {
			e := heap.Pop(&queue).(event)
			if e.grant != nil {
				if by := e.n - e.estimate; by != 0 {
					tokens.N = 1
					if err := budget.AdjustAt(t.Context(), client, tokens, e.grant.Parts[1], by, base.Add(e.at)); err != nil {
						t.Fatal(err)
					}
				}
				heap.Push(&queue, event{at: e.at})
				continue
			}
			tokens.N = most * 2 / 3
			g, err := budget.DrawAt(t.Context(), client, budget.Forever, base.Add(e.at), requests, tokens)
			if err != nil || !g.Drawn {
				t.Fatalf("%+v, %v", g, err)
			}
			truth := most/3 + rng.Int64N(most/3+1) // in the second half of the time all are too high, in the first too low
			if e.at < seconds/2*time.Second {
				truth += most / 3
			}
			used = append(used, granted{g.At.Sub(base), truth})
			total += truth
			lasts := time.Duration(50+rng.IntN(450)) * time.Millisecond
			heap.Push(&queue, event{g.At.Sub(base) + lasts.Truncate(time.Microsecond), &g, tokens.N, truth})
		}
		sortGrants(used)
		wider := r
		if name == "openai/bucket" {
			wider.Burst += callers * most / 3
			if err := over(wider, used); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		} else {
			wider.Rate.Units += callers * most / 3
			if err := overWindow(wider.Rate, used); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		share := float64(total) / float64(1000*seconds)
		t.Logf("%s: %d requests, %.1f %% of the tokens used", name, len(used), 100*share)
		if share < 0.8 {
			t.Errorf("%s: %.1f %% of the tokens are used", name, 100*share)
		}
	}
}
