package verify

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/callq/callq/internal/limit"
	"github.com/google/go-cmp/cmp"
)

// What arrivals rest on is said for each limit, and when hosts stood still: times that overlap are one.
func TestArrivals(t *testing.T) {
	t.Parallel()
	zero := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(s int) *time.Time { return new(zero.Add(time.Duration(s) * time.Second)) }
	sum := newArrivals()
	add := func(proof limit.Proof, from, until int, took int32) {
		a := &attempt{Started: at(from), At: *at(from), Finished: at(until), ended: ended{Arrived: at(until)}}
		if until == 0 { // unknown
			a.Arrived = new(limit.Unknown())
		}
		if proof != "" {
			a.Proof = new(string(proof))
		}
		if took > 0 {
			a.Code, a.Took = new(int16(200)), &took
		} else {
			a.Host, a.SentBy = new("api:80"), at(from)
		}
		sum.add(a, []charge{{Limit: "api", Until: a.Arrived}})
	}
	add("", 0, 1, 300)
	add(limit.ProofLater, 10, 20, 0)
	add(limit.ProofLater, 12, 25, 0)
	add(limit.Assumed, 14, 24, 0)
	add(limit.ProofLater, 30, 30, 0) // a reset, and the next was answered: no standstill
	add(limit.ProofLater, 40, 42, 0)
	add(limit.ProofSlack, 50, 51, 900)
	add(limit.ProofSlack, 50, 51, 4000)
	add("", 60, 0, 0)
	sum.add(&attempt{Started: at(70)}, []charge{{Limit: "api"}, {Limit: "open"}})
	want := []Arrivals{
		{
			Limit: "api", Answered: 1, Later: 4, Slack: 2, Assumed: 1, InDoubt: 2, Overdue: 1, OverdueBy: 3000,
			Still: []Standstill{{"api:80", *at(10), *at(25)}, {"api:80", *at(40), *at(42)}},
		},
		{Limit: "open", InDoubt: 1},
	}
	got := sum.report()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("report (-want +got):\n%s", diff)
	}
	if _, err := json.Marshal(got); err != nil {
		t.Error(err)
	}
}
