package limit

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Names of shares that are not a queue's. Those of priorities are "priority 3" or "priority 0-2".
const (
	Retries = "retries" // calls that wait for another attempt after one that failed
	Rest    = "rest"    // calls of no other share

	priorityShare = "priority "
)

// Shares are the parts of a limit's units, in percent, by name. Each is guaranteed its part while it has calls; what one has no calls
// for, the others use.
type Shares map[string]float64

// ParsePart reads a part as people write it: 30%, 12.5%.
func ParsePart(text string) (float64, error) {
	number, ok := strings.CutSuffix(text, "%")
	part, err := strconv.ParseFloat(number, 64)
	if !ok || err != nil || strings.Trim(number, "0123456789.") != "" || part < 0.1 || part > 100 {
		return 0, fmt.Errorf("%q is not a part: write it as 30%%, from 0.1%% to 100%%", text)
	}
	return part, nil
}

// Of is the share of a call; "": it is of none. Whose retries have a share are of that; others are of their queue's, else of
// their priority's.
func (s Shares) Of(queue string, priority int, retry bool) string {
	if _, is := s[Retries]; is && retry {
		return Retries
	}
	if _, is := s[queue]; is && !isGeneral(queue) {
		return queue
	}
	for name := range s {
		if first, last, is := priorities(name); is && first <= priority && priority <= last {
			return name
		}
	}
	if _, is := s[Rest]; is {
		return Rest
	}
	return ""
}

// Among are the shares that calls of a queue can be of.
func (s Shares) Among(queue string) (names []string) {
	for name := range s {
		_, _, is := priorities(name)
		if own := s.Of(queue, 0, false) == queue && !isGeneral(queue); name == Retries || name == queue && own || !own && (is || name == Rest) {
			names = append(names, name)
		}
	}
	return names
}

// isGeneral reports whether a share of this name is not a queue's.
func isGeneral(name string) bool {
	_, _, is := priorities(name)
	return is || name == Retries || name == Rest
}

// priorities are those of a share's name: "priority 0-2" has 0 to 2, "priority 3" only 3.
func priorities(name string) (first, last int, is bool) {
	span, is := strings.CutPrefix(name, priorityShare)
	from, to, some := strings.Cut(span, "-")
	if !some {
		to = from
	}
	isPriority := func(s string) bool { return len(s) == 1 && s[0] >= '0' && s[0] <= '9' }
	if !is || !isPriority(from) || !isPriority(to) || from > to {
		return 0, 0, false
	}
	return int(from[0] - '0'), int(to[0] - '0'), true
}

// Complete refuses shares that cannot be kept by a limit that these queues use, and gives the rest what is left. name is the share that
// the error is about; "": all.
func (s Shares) Complete(queues []string) (whole Shares, name string, err error) {
	if len(s) == 0 {
		return nil, "", nil
	}
	whole = maps.Clone(s)
	sum, taken := 0.0, map[int]string{}
	for _, name := range slices.Sorted(maps.Keys(s)) {
		sum += s[name]
		first, last, ranks := priorities(name)
		if !ranks && !isGeneral(name) && !slices.Contains(queues, name) {
			return nil, name, fmt.Errorf("%q is no queue that uses the limit", name)
		}
		for p := first; ranks && p <= last; p++ {
			if taken[p] != "" {
				return nil, name, fmt.Errorf("%q and %q both have priority %d", taken[p], name, p)
			}
			taken[p] = name
		}
	}
	const exact = 1e-6
	_, rest := s[Rest]
	named := !slices.ContainsFunc(queues, func(queue string) bool { _, is := s[queue]; return !is })
	switch left := 100 - sum; {
	case left < -exact, rest && left > exact:
		return nil, "", fmt.Errorf("the shares add up to %s: they must be 100%%", Part(sum))
	case !rest && left > exact:
		whole[Rest] = math.Round(left*1e6) / 1e6
	case !rest && !named && len(taken) < 10:
		return nil, "", errors.New("the shares leave nothing to calls that are of none: give them some, as rest")
	}
	return whole, "", nil
}

// Part is a part as people write it.
func Part(percent float64) string { return strconv.FormatFloat(percent, 'g', 6, 64) + "%" }

// String lists the shares: chat 30%, rest 50%, retries 20%.
func (s Shares) String() string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(s)) {
		list = append(list, name+" "+Part(s[name]))
	}
	return strings.Join(list, ", ")
}

// Turns is whose turn it is among the shares of a limit, or of a key of one. A share that has used less than its part of the last window
// goes before those that have used theirs. Among others it is start-time fair queueing (Goyal, Vin and Cheng, 1996): each unit
// that a share takes advances it by one over its part, and the next is for the least advanced of those that want one.
//
// Where nothing is known of former units, the first is a share's with the probability that is its part.
type Turns struct {
	shares Shares
	had    map[string]float64
	taken  map[string][]took
}

// took is units that were taken about at a time.
type took struct {
	at    time.Time
	units int64
}

// NewTurns begins anew. random is uniform in (0, 1].
func NewTurns(s Shares, random func() float64) *Turns {
	t := &Turns{s, map[string]float64{}, map[string][]took{}}
	for _, name := range slices.Sorted(maps.Keys(s)) {
		t.had[name] = -math.Log(random()) / t.part(name) / 1000 // the least is a share's with the probability that is its part
	}
	return t
}

// Are reports whether the turns are of these shares.
func (t *Turns) Are(s Shares) bool { return maps.Equal(t.shares, s) }

func (t *Turns) part(name string) float64 { return t.shares[name] / 100 }

// Took notes that a share took units, which count for span.
func (t *Turns) Took(name string, units int64, now time.Time, span time.Duration) {
	t.had[name] += float64(units) / t.part(name)
	if span == 0 {
		return
	}
	const parts = 100
	list := t.taken[name]
	if last := len(list) - 1; last >= 0 && now.Sub(list[last].at) < span/parts {
		list[last].units += units
		return
	}
	t.taken[name] = append(list, took{now, units})
}

// Within is how many units each share took within span.
func (t *Turns) Within(now time.Time, span time.Duration) map[string]int64 {
	units := map[string]int64{}
	for name, list := range t.taken {
		list = slices.DeleteFunc(list, func(some took) bool { return now.Sub(some.at) >= span })
		t.taken[name] = list
		for _, some := range list {
			units[name] += some.units
		}
	}
	return units
}

// First is the share of these whose turn is first.
func (t *Turns) First(names []string) string {
	return slices.MinFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(t.had[a], t.had[b]), cmp.Compare(a, b))
	})
}

// after is how far a share is once it took units.
func (t *Turns) after(name string, units int64) float64 {
	return t.had[name] + float64(units)/t.part(name)
}

// Demand is how many units the calls of a share wait for, and how many of these the next call takes.
type Demand struct{ Units, Next int64 }

// And adds the demand of other calls.
func (d Demand) And(other Demand) Demand {
	return Demand{min(d.Units+other.Units, math.MaxInt32), max(d.Next, other.Next)}
}

// Split divides units of a rate among the shares that demand some. used is what each has of a window.
func (t *Turns) Split(r Rate, demand map[string]Demand, units int64, used map[string]int64) (got map[string]int64) {
	below := map[string]int64{}
	for name := range t.shares {
		if least := int64(t.part(name)*float64(r.Units)+1e-6) - used[name]; least > 0 {
			below[name] = min(demand[name].Units, max(least, demand[name].Next))
		}
	}
	t.catchUp(demand, r.Most())
	got = t.fill(below, units, map[string]int64{})
	left, rest := units, map[string]int64{}
	for name := range t.shares {
		left, rest[name] = left-got[name], demand[name].Units-got[name]
	}
	for name, more := range t.fill(rest, left, got) {
		got[name] += more
	}
	return got
}

// catchUp has no share be further behind the most advanced than it can be while it wants units all the time, of which so many come free at
// once: what it did not want has gone to others.
func (t *Turns) catchUp(demand map[string]Demand, atOnce int64) {
	most, least := math.Inf(-1), 1.0
	for name := range t.shares {
		least = min(least, t.part(name))
	}
	for name, wants := range demand {
		if wants.Units > 0 {
			most = max(most, t.had[name])
		}
	}
	for name, wants := range demand {
		if wants.Units > 0 {
			t.had[name] = max(t.had[name], most-float64(atOnce)-float64(wants.Next)/t.part(name)-1/least)
		}
	}
}

// fill divides units by turns, once shares have got some.
func (t *Turns) fill(demand map[string]int64, units int64, got map[string]int64) (more map[string]int64) {
	var names []string
	low, high := math.Inf(1), math.Inf(-1)
	for name, wants := range demand {
		if wants > 0 && units > 0 {
			names = append(names, name)
			low, high = min(low, t.after(name, got[name])), max(high, t.after(name, got[name]+min(wants, units)))
		}
	}
	// Those that are less advanced than some level are raised to it. It is found by halving.
	raised := func(name string, to float64) float64 {
		return min(max(0, (to-t.after(name, got[name]))*t.part(name)), float64(min(demand[name], units)))
	}
	for range 60 {
		sum, level := 0.0, (low+high)/2
		for _, name := range names {
			sum += raised(name, level)
		}
		if sum > float64(units) {
			high = level
		} else {
			low = level
		}
	}
	more = map[string]int64{}
	left := units
	for _, name := range names {
		more[name] = int64(raised(name, low))
		left -= more[name]
	}
	for ; left > 0; left-- { // less than one each
		names = slices.DeleteFunc(names, func(name string) bool { return more[name] >= demand[name] })
		if len(names) == 0 {
			break
		}
		more[slices.MinFunc(names, func(a, b string) int {
			return cmp.Or(cmp.Compare(t.after(a, got[a]+more[a]), t.after(b, got[b]+more[b])), cmp.Compare(a, b))
		})]++
	}
	return more
}
