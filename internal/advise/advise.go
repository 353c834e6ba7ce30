// Package advise finds the limiter that explains which requests an API refused, and the limit that it never refuses.
//
// It replays the requests of one limit through models of limiters. The best predicts most of the refusals, and few of those let
// through. It proves nothing: another limiter may refuse the same requests. It is pure: it does no I/O and has no clock.
package advise

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/words"
)

// Answer is what the API made of a request.
type Answer int

// What became of a request.
const (
	LetThrough Answer = iota
	Refused
	Unknown // it had no answer; it may have been counted
)

// Request is one that may have reached the API.
type Request struct {
	Earliest, Latest time.Time // between which it arrived
	Answer           Answer
	Cost             int64         // 0 counts as 1
	Held             time.Duration // from its claim until its units began to come free
}

// Limit is the limit under which they were sent.
type Limit struct {
	Name      string
	Rate      limit.Rate // of the key
	PerKey    bool
	CountCost bool
	OwnRate   bool      // the key has a rate of its own
	Evenly    bool      // calls go evenly since the API refused some that came together: there will be few refusals
	Changed   time.Time // when its rate was last changed; what was sent before counts only if little was sent since
}

func (l Limit) units() float64     { return float64(l.Rate.Units) }
func (l Limit) perSecond() float64 { return l.units() / l.Rate.Span().Seconds() }

// each is what one unit takes.
func (l Limit) each() time.Duration { return l.Rate.Span() / time.Duration(l.Rate.Units) }

// Verdict is what comes of the answers.
type Verdict string

// The verdicts.
const (
	Fits       Verdict = "fits"    // nothing was refused
	Change     Verdict = "change"  // another limit fits
	CannotTell Verdict = "unknown" // the ledger cannot tell
)

// Advice is the limit that fits. Without one, the fields from Algorithm to Share and Config are nil.
type Advice struct {
	Limit    string  `json:"limit"`
	Now      string  `json:"in_force"` // its rate
	Key      *string `json:"key"`      // whose requests these are, of a limit per key
	Requests int     `json:"requests"`
	Refused  int     `json:"refused"`
	Verdict  Verdict `json:"verdict"`
	Proposal
	Evidence string     `json:"evidence"`
	RestsOn  []string   `json:"rests_on"`
	Try      string     `json:"try"`
	Others   []Proposal `json:"also_fit"` // that explain the refusals about as well
}

// Proposal is a limit.
type Proposal struct {
	Algorithm *string  `json:"algorithm"`
	Rate      *string  `json:"rate"`
	Burst     *int64   `json:"burst"`      // of a token bucket
	Spacing   *string  `json:"spacing"`    // of a leaky bucket or a sliding window counter
	Share     *float64 `json:"share"`      // of the API's own rate that callq would use, at most 1
	PerSecond *float64 `json:"per_second"` // units that it would use
	Config    *string  `json:"config"`     // the line to write
}

// The fewest requests, refused and let through, that tell anything, and what a model must explain.
const (
	fewRequests = 50
	fewRefusals = 5 // 2 where calls go evenly
	fewThrough  = 5
	mustExplain = 0.8
	mayBeWrong  = 0.1
)

// For finds the limit that fits.
func For(l Limit, requests []Request) Advice {
	since := slices.DeleteFunc(slices.Clone(requests), func(r Request) bool { return r.Earliest.Before(l.Changed) })
	if len(since) >= fewRequests {
		requests = since
	}
	a := Advice{Limit: l.Name, Now: l.Rate.String(), Requests: len(requests), Verdict: CannotTell, RestsOn: []string{}, Others: []Proposal{}}
	for _, r := range requests {
		if r.Answer == Refused {
			a.Refused++
		}
	}
	few := fewRefusals
	if l.Evenly {
		few = 2
	}
	again := "run 200 calls with the limit as it is, and ask again"
	switch {
	case l.Rate.Window == 0:
		return a.cannot("it counts calls at once, and refusals tell of rates only", "give the API's rate as a second limit of the queue, and ask again")
	case len(requests) == 0:
		return a.cannot("the ledger has no request under it", again)
	case a.Refused == 0:
		return a.asItIs(l, requests)
	case len(requests) < fewRequests || a.Refused < few:
		return a.cannot(fmt.Sprintf("of %s under it %s refused: too few to tell", words.Count(int64(len(requests)), "request"), was(a.Refused)), again)
	}
	if n := letThrough(requests); n < fewThrough {
		return a.cannot(fmt.Sprintf("of %s under it %s let through: the API takes hardly any, at whatever rate", words.Count(int64(len(requests)), "request"), was(n)),
			"see what its answers tell (callq calls list --code 429), and ask again after 200 calls once it takes some")
	}
	blur := blurOf(requests)
	return a.choose(l, requests, fits(l, requests, blur), blur)
}

// choose makes advice of the best model, if it explains enough.
func (a Advice) choose(l Limit, requests []Request, fits []fit, blur time.Duration) Advice {
	best, through := fits[0], words.Count(int64(letThrough(requests)), "request")
	explained := float64(best.hits) / float64(a.Refused)
	wrong := float64(best.wrong) / max(float64(letThrough(requests)), float64(a.Refused)/5)
	switch {
	case !best.resolves(blur):
		return a.cannot(fmt.Sprintf("when requests arrived is known to %s only: too coarse to tell of a window of %s", inWords(blur), inWords(l.Rate.Span())),
			"run 200 calls from a worker that is nearer to the API, or against a path that answers at once, and ask again")
	case explained < mustExplain || wrong > mayBeWrong:
		return a.cannot(fmt.Sprintf("the limiter that fits best, %s, explains %s of %s, and would have refused %s of %s that were let through",
			best.inWords(), words.Number(best.hits), words.Count(int64(a.Refused), "refusal"), words.Number(best.wrong), through),
			"see whether others use the API's limit, too, or whether it counts per account or by cost; else run 200 calls while nothing else calls the API, and ask again")
	}
	held := heldOf(requests)
	alike := slices.DeleteFunc(slices.Clone(fits[1:]), func(f fit) bool {
		return f.score < fits[0].score-near || f.kind > max(bucket, best.kind) || f.rate() > l.perSecond()*1.001
	})
	proposal, rate := best.below(alike).propose(l, held)
	if proposal.Config == nil {
		return a.cannot("no limit of callq fits what would, "+best.inWords(), "set a lower rate with callq limits set, and ask again after 200 calls")
	}
	if rate.AtLeast(l.Rate) || oneByOne(rate) && oneByOne(l.Rate) && rate.Window <= l.Rate.Window {
		return a.cannot(fmt.Sprintf("%s would fit, and the limit in force never exceeds it, yet %s of %s refused",
			best.inWords(), was(a.Refused), words.Count(int64(a.Requests), "request")),
			"see whether others use the API's limit, too; else set a lower rate with callq limits set, and ask again after 200 calls")
	}
	a.Verdict, a.Proposal = Change, proposal
	a.Evidence = fmt.Sprintf("refused were those %s: that explains %s of %s, and would have refused %s of %s that were let through",
		best.refuses(), words.Number(best.hits), words.Count(int64(a.Refused), "refusal"), words.Number(best.wrong), through)
	a.RestsOn = best.restsOn(l, requests, held, blur)
	for _, f := range alike {
		other, _ := f.propose(l, held)
		if other.Config != nil && !slices.ContainsFunc(append(a.Others, a.Proposal), func(p Proposal) bool { return *p.Config == *other.Config }) {
			a.Others = append(a.Others, other)
		}
	}
	a.Try = "write the line, and ask again after 200 calls"
	if len(a.Others) > 0 {
		a.Try += "; if that is too slow, try what also fits: the ledger does not tell them apart"
	}
	return a
}

// oneByOne reports whether a limit lets one through after another, without a tolerance.
func oneByOne(r limit.Rate) bool { return r.Algorithm.Traits().OneByOne && r.Units == 1 }

// below lowers a window to what buckets let through at once that explain the refusals as well, if that is clearly less.
func (f fit) below(alike []fit) fit {
	for _, other := range alike {
		if other.kind == bucket && f.kind <= clock && other.capacity < 0.96*f.capacity {
			f.capacity = other.capacity
		}
	}
	return f
}

// cannot explains why the ledger cannot tell.
func (a Advice) cannot(why, try string) Advice {
	a.Evidence, a.Try = why, try
	return a
}

// asItIs keeps a limit of which nothing was refused.
func (a Advice) asItIs(l Limit, requests []Request) Advice {
	held := heldOf(requests)
	a.Verdict = Fits
	a.Proposal = propose(l, l.Rate, written(l.Rate), share(l.Rate, held, l.perSecond()), l.perSecond())
	a.Evidence = fmt.Sprintf("none of %s was refused: the limit fits as far as is seen", words.Count(int64(a.Requests), "request"))
	a.RestsOn = []string{seen(requests), "the API's rate is that of the limit; it may be higher", holds(held)}
	a.Try = "nothing; if the API takes more, raise the rate with callq limits set, and ask again after 200 calls"
	if a.Requests < fewRequests {
		a.Try = "run 200 calls: there are too few to tell"
	}
	return a
}

// letThrough is how many requests were let through.
func letThrough(requests []Request) (n int) {
	for _, r := range requests {
		if r.Answer == LetThrough {
			n++
		}
	}
	return n
}

// Text is the advice in lines for people.
func (a Advice) Text() string {
	var b strings.Builder
	line := func(name, text string) { fmt.Fprintf(&b, "%-9s %s\n", name, text) }
	of := ""
	if a.Key != nil {
		of = ", key " + *a.Key
	}
	line("limit", a.Limit+of+": "+a.Now)
	line("refused", fmt.Sprintf("%s of %s", words.Number(a.Refused), words.Count(int64(a.Requests), "request")))
	switch a.Verdict {
	case CannotTell:
		line("advice", "none: the ledger cannot tell")
		line("because", a.Evidence)
	case Fits:
		line("advice", "leave it as it is")
		line("evidence", a.Evidence)
	default:
		line("advice", a.text())
		line("evidence", a.Evidence)
	}
	for i, text := range a.RestsOn {
		line(map[bool]string{true: "rests on"}[i == 0], text)
	}
	for i, p := range a.Others {
		line(map[bool]string{true: "also fits"}[i == 0], p.text())
	}
	if a.Verdict == Change {
		line("write", *a.Config)
	}
	line("try", a.Try)
	return b.String()
}

func (p Proposal) text() string {
	text := *p.Algorithm + " " + *p.Rate
	if p.Burst != nil {
		text += fmt.Sprintf(", burst %d", *p.Burst)
	}
	return text + fmt.Sprintf("; uses about %.3g a second, %.0f %% of the API's rate", *p.PerSecond, *p.Share*100)
}

// blurOf is how exactly the arrivals of most refused requests are known. Limiters refuse at once, so these bound it best.
func blurOf(requests []Request) time.Duration {
	var widths []time.Duration
	for _, r := range requests {
		if r.Answer == Refused {
			widths = append(widths, r.Latest.Sub(r.Earliest))
		}
	}
	return max(2*time.Millisecond, median(widths).Round(time.Millisecond))
}

// held is for how long calls hold their units before these begin to come free: from the claim, and from the start, as in a run.
type held struct{ claim, start time.Duration }

func heldOf(requests []Request) held {
	var claim, start []time.Duration
	for _, r := range requests {
		if r.Answer == LetThrough {
			claim, start = append(claim, r.Held), append(start, r.Latest.Sub(r.Earliest))
		}
	}
	return held{median(claim), median(start)}
}

func median(all []time.Duration) time.Duration {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// inWords writes a duration as people do: 10 ms, 1 s, 1.5 s, 1 h.
func inWords(d time.Duration) string {
	for _, unit := range []struct {
		length time.Duration
		name   string
	}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "min"}, {time.Second, "s"}, {time.Millisecond, "ms"}} {
		if d >= unit.length {
			return fmt.Sprintf("%.4g %s", float64(d)/float64(unit.length), unit.name)
		}
	}
	return d.String()
}

func was(n int) string {
	return words.Number(n) + cmp.Or(map[bool]string{true: " was"}[n == 1], " were")
}
