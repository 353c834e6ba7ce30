package oracle

import (
	"fmt"
	"slices"
	"strconv"
)

// Call is what became of a call: as it stands, or as it stood when it was deleted.
type Call struct {
	ID      int64  `db:"id"`
	Status  string `db:"status"`
	Deleted bool   `db:"deleted"`
	ByTest  bool   `db:"by_test"` // deleted by the test, in whatever status, and not by retention
	Poison  bool   `db:"poison"`  // it cannot be made
}

// Attempt is an attempt that has closed, as the ledger has it.
type Attempt struct {
	Call    int64  `db:"call"`
	Attempt int    `db:"attempt"`
	Outcome string `db:"outcome"`
	Charged int    `db:"charged"` // limits that it was charged to
}

// Account is all that is known when a run has come to rest.
type Account struct {
	Limits       []Limit
	Requests     []Request // of the whole run
	Acknowledged []int64   // ids of the inserts that were acknowledged
	Calls        []Call    // every call there was, those that were deleted too
	Attempts     []Attempt // every attempt of the ledger, those that were retired too
	Open         int       // attempts that are still open
}

// Findings are the ways in which the run broke a rule; none: it kept them all.
func (a Account) Findings() []Finding {
	var all []Finding
	for _, l := range a.Limits {
		all = append(all, l.Over(a.Requests)...)
	}
	all = append(all, Twice(a.Requests)...)
	all = append(all, a.lost()...)
	all = append(all, a.unended()...)
	all = append(all, a.endings()...)
	all = append(all, a.poison()...)
	return append(all, a.uncharged()...)
}

// lost finds acknowledged inserts of which nothing is known any more.
func (a Account) lost() []Finding {
	known := map[int64]bool{}
	for _, c := range a.Calls {
		known[c.ID] = true
	}
	var findings []Finding
	for _, id := range a.Acknowledged {
		if !known[id] {
			findings = append(findings, Finding{
				Rule: "nothing vanishes", Detail: fmt.Sprintf("call %d was acknowledged, and is gone", id),
				Requests: a.requestsOf(id, 0),
			})
		}
	}
	return findings
}

// unended finds calls that are stuck, and those that something other than the test removed
// before their end.
func (a Account) unended() []Finding {
	var findings []Finding
	for _, c := range a.Calls {
		if c.Ended() || c.Deleted && c.ByTest {
			continue
		}
		what := "is stuck"
		if c.Deleted {
			what = "was removed"
		}
		findings = append(findings, Finding{
			Rule: "every call ends", Detail: fmt.Sprintf("call %d %s in status %s", c.ID, what, c.Status),
			Requests: a.requestsOf(c.ID, 0),
		})
	}
	if a.Open > 0 {
		findings = append(findings, Finding{Rule: "every attempt ends", Detail: fmt.Sprintf("%d are still open", a.Open)})
	}
	return findings
}

// Ended says whether the status is final.
func (c Call) Ended() bool { return slices.Contains([]string{"done", "failed", "cancelled"}, c.Status) }

// endings holds the calls against their attempts: one done attempt where the call is done, and
// a request that made it so.
func (a Account) endings() []Finding {
	done := map[int64][]int{}
	for _, t := range a.Attempts {
		if t.Outcome == "done" {
			done[t.Call] = append(done[t.Call], t.Attempt)
		}
	}
	var findings []Finding
	add := func(c Call, detail string, args ...any) {
		findings = append(findings, Finding{
			Rule:     "a done call has exactly one done attempt",
			Detail:   fmt.Sprintf("call %d, %s: ", c.ID, c.Status) + fmt.Sprintf(detail, args...),
			Requests: a.requestsOf(c.ID, 0),
		})
	}
	for _, c := range a.Calls {
		attempts := done[c.ID]
		switch {
		case len(attempts) > 1, c.Status == "done" && len(attempts) == 0:
			add(c, "done attempts %v", attempts)
		case len(attempts) == 1 && c.Status != "done" && !c.ByTest: // the test deletes what runs, too
			add(c, "attempt %d is done", attempts[0])
		case len(attempts) == 1 && len(a.requestsOf(c.ID, attempts[0])) == 0:
			add(c, "of its done attempt %d no request arrived", attempts[0])
		}
	}
	return findings
}

// poison finds calls that cannot be made, and yet were.
func (a Account) poison() []Finding {
	var findings []Finding
	for _, c := range a.Calls {
		if sent := a.requestsOf(c.ID, 0); c.Poison && (c.Status == "done" || len(sent) > 0) {
			findings = append(findings, Finding{
				Rule: "a call that cannot be made fails", Detail: fmt.Sprintf("call %d is %s", c.ID, c.Status), Requests: sent,
			})
		}
	}
	return findings
}

// uncharged finds requests whose attempt the ledger does not know, or takes for unsent: their
// units were given out again.
func (a Account) uncharged() []Finding {
	charged := map[string]int{}
	for _, t := range a.Attempts {
		charged[fmt.Sprintf("%d/%d", t.Call, t.Attempt)] = t.Charged
	}
	var findings []Finding
	for _, r := range a.Requests {
		want := 0
		for _, l := range a.Limits {
			if slices.Contains(l.Queues, r.Queue) {
				want++
			}
		}
		if n := charged[r.Call+"/"+r.Attempt]; n != want {
			findings = append(findings, Finding{
				Rule:     "what was sent is charged",
				Detail:   fmt.Sprintf("call %s attempt %s was charged to %d limits of %d", r.Call, r.Attempt, n, want),
				Requests: []Request{r},
			})
		}
	}
	return findings
}

// requestsOf are the requests of a call, of all its attempts or of one.
func (a Account) requestsOf(id int64, attempt int) []Request {
	var own []Request
	for _, r := range a.Requests {
		if r.Call == strconv.FormatInt(id, 10) && (attempt == 0 || r.Attempt == strconv.Itoa(attempt)) {
			own = append(own, r)
		}
	}
	return own
}
