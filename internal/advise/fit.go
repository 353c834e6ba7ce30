package advise

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/callq/callq/internal/limit"
)

// near is how far apart the scores of two models may be that count as equally good.
const near = 0.02

// fit is how well a model explains the answers.
type fit struct {
	model
	hits   int     // refusals that it predicts, at about their time
	wrong  int     // others that it predicts
	score  float64 // the part of the refusals that it predicts, less the part of those let through, and a little for those it misses
	proper bool    // its rate is that of the limit in force
	span   bool    // its window is
	beyond bool    // it lets more through than the limit in force
}

// arrivals are the requests in the order of their arrivals, each at about its time.
type arrivals struct {
	at       []int64
	requests []Request
	refused  []int64 // when those arrived that were refused
	through  int     // how many were let through
	blur     int64   // how far from its arrival a time may be
}

// place orders the requests by their starts, or by their answers. Starts that were recorded together are less exact than answers; those of
// a slow API are more exact.
func place(requests []Request, blur time.Duration, answers bool) arrivals {
	a := arrivals{requests: slices.Clone(requests), blur: int64(blur)}
	at := func(r Request) time.Time {
		if answers {
			return r.Latest
		}
		return r.Earliest
	}
	slices.SortStableFunc(a.requests, func(x, y Request) int { return cmp.Or(at(x).Compare(at(y)), x.Latest.Compare(y.Latest)) })
	for _, r := range a.requests {
		a.at = append(a.at, at(r).UnixNano())
		switch r.Answer {
		case Refused:
			a.refused = append(a.refused, at(r).UnixNano())
		case LetThrough:
			a.through++
		}
	}
	return a
}

// try replays the requests through a limiter that goes by its own decisions, as the API does.
func (a arrivals) try(m model) fit {
	c := m.counter(a.at[0])
	f := fit{model: m}
	next, predicted := 0, 0
	for i, r := range a.requests {
		units := m.units(r)
		refused := c.level(a.at[i])+units > m.capacity+m.slack+1e-9
		c.add(a.at[i], units, !refused)
		if !refused || r.Answer == Unknown {
			continue
		}
		// Each prediction stands for the first refusal that is near, and that none before stands for.
		for predicted++; next < len(a.refused) && a.refused[next] < a.at[i]-a.blur; next++ {
		}
		if next < len(a.refused) && a.refused[next] <= a.at[i]+a.blur {
			f.hits++
			next++
		}
	}
	f.wrong = predicted - f.hits
	missed, through := float64(len(a.refused)-f.hits), float64(max(1, a.through))
	f.score = float64(f.hits)/float64(max(1, len(a.refused))) - float64(f.wrong)/through - min(0.1, 0.03*missed/through)
	if m.kind == clock || m.kind == estimate || m.kind == rolling {
		f.score -= near // of many phases one may fit by chance
	}
	return f
}

// units are what a request takes: of a spacing one, whatever it costs.
func (m model) units(r Request) float64 {
	if m.kind == spacing {
		return 1
	}
	return float64(max(1, r.Cost))
}

// capacities are those that the answers suggest for a model: what it had counted at most when it let requests through, and the
// limit's own.
func (a arrivals) capacities(m model, own float64) []float64 {
	c := m.counter(a.at[0])
	var levels []float64
	for i, r := range a.requests {
		level := c.level(a.at[i])
		c.add(a.at[i], m.units(r), r.Answer != Refused)
		if r.Answer == LetThrough {
			levels = append(levels, level+m.units(r))
		}
	}
	slices.Sort(levels)
	found := []float64{own}
	for _, part := range []float64{1, 0.99, 0.95, 0.8} {
		if len(levels) > 0 {
			level := levels[int(part*float64(len(levels)-1))]
			found = append(found, math.Ceil(level-1e-9), math.Floor(level), 5*math.Floor(level/5), 10*math.Floor(level/10))
		}
	}
	slices.Sort(found)
	return slices.DeleteFunc(slices.Compact(found), func(n float64) bool { return n < 1 })
}

// fits are the best of each kind, best first, with each request at its start or at its answer.
func fits(l Limit, requests []Request, blur time.Duration) (all []fit) {
	best := map[kind]fit{}
	for _, answers := range []bool{false, true} {
		place(requests, blur, answers).fit(l, best)
		for _, f := range best {
			if f.score > 1-near {
				answers = true
			}
		}
		if answers {
			break
		}
	}
	for _, f := range best {
		all = append(all, f)
	}
	return rank(all)
}

// fit keeps the best of each kind.
func (a arrivals) fit(l Limit, best map[kind]fit) {
	for _, m := range a.grid(l) {
		own, capacities := l.units()*float64(m.window)/float64(l.Rate.Span()), []float64{1}
		if m.kind != spacing {
			capacities = a.capacities(m, own)
		}
		slack := []float64{0}
		if most, leaks := map[kind]float64{spacing: 0.5, bucket: 1}[m.kind]; leaks {
			slack = append(slack, min(most, float64(a.blur)/float64(m.window)))
		}
		for _, m.capacity = range capacities {
			if m.capacity < 2 && m.kind != spacing && m.kind != elastic {
				continue // a spacing is the same
			}
			for _, m.slack = range slack {
				f := a.try(m)
				f.compare(l)
				if other, is := best[m.kind]; !is || f.better(other) {
					best[m.kind] = f
				}
			}
		}
	}
}

// compare compares it with the limit in force.
func (f *fit) compare(l Limit) {
	ratio := f.rate() / l.perSecond()
	f.proper, f.span, f.beyond = math.Abs(ratio-1) < 0.001, f.window == l.Rate.Span(), ratio > 1.001
}

// better prefers, of models of a kind that are about as good, the limit's own rate and window, round numbers, and then what lets
// less through.
func (f fit) better(other fit) bool {
	likely := func(f fit) float64 {
		score := f.score
		if f.proper {
			score += near
		}
		if f.span {
			score += near / 2
		}
		switch n := int64(f.capacity); {
		case n > 10 && n%10 == 0:
			score += near
		case n > 10 && n%5 == 0:
			score += near / 2
		}
		return score
	}
	if x, y := likely(f), likely(other); math.Abs(x-y) > near/10 {
		return x > y
	}
	return f.rate() < other.rate()*0.999
}

// rank sorts by the score. Of those about as good as the best, the limit's own rate goes first, then its window, then the simpler
// kind. A bucket that fills at the limit's rate comes after the window: with any burst it explains what a window refuses.
func rank(all []fit) []fit {
	slices.SortFunc(all, func(x, y fit) int { return cmp.Or(cmp.Compare(y.score, x.score), cmp.Compare(x.kind, y.kind)) })
	n := 0
	for n < len(all) && all[n].score >= all[0].score-near {
		n++
	}
	likely := func(f fit) int {
		switch {
		case f.proper && (f.span || f.kind == spacing):
			return 0
		case f.beyond:
			return 4
		case f.span:
			return 1
		case f.proper && f.kind == bucket:
			return 2
		}
		return 3
	}
	slices.SortStableFunc(all[:n], func(x, y fit) int { return cmp.Or(likely(x)-likely(y), cmp.Compare(x.kind, y.kind)) })
	return all
}

// resolves reports whether times that are this exact can tell of it.
func (m model) resolves(blur time.Duration) bool {
	switch m.kind {
	case spacing: // many at once of which one was let through tell of it, too
		return blur <= 10*m.window
	case bucket:
		return blur <= time.Duration(m.capacity)*m.window/2
	}
	return blur <= m.window/2
}

// rate is what the API lets through in the long run, in units a second.
func (m model) rate() float64 {
	switch m.kind {
	case spacing, bucket:
		return 1 / m.window.Seconds()
	}
	return m.capacity / m.window.Seconds()
}

// grid are the models that are tried, with capacities yet to be found.
func (a arrivals) grid(l Limit) (models []model) {
	span := l.Rate.Span()
	lasts := time.Duration(a.at[len(a.at)-1] - a.at[0])
	usual := []time.Duration{time.Second, 10 * time.Second, time.Minute, time.Hour}
	var windows, short []time.Duration
	for _, w := range append(usual, span, span/10, span/5, span/4, span/2, 2*span, 5*span, 10*span, 60*span) {
		if w == span || w >= 10*time.Millisecond && w <= lasts && w >= 2*time.Duration(a.blur) {
			windows = append(windows, w)
		}
	}
	windows = unique(windows)
	for _, w := range append(usual[:3:3], span, span/2, 2*span) {
		if slices.Contains(windows, w) {
			short = append(short, w)
		}
	}
	each := l.each()
	for _, e := range steps(each, lasts) {
		if e >= time.Duration(a.blur/20) {
			models = append(models, model{kind: bucket, window: e})
			if e >= limit.MinWindow {
				models = append(models, model{kind: spacing, window: e})
			}
		}
	}
	for _, w := range windows {
		models = append(models, model{kind: sliding, window: w}, model{kind: first, window: w})
		phases := time.Duration(20)
		if w == span {
			phases = 100
		}
		for step := range phases {
			models = append(models, model{kind: clock, window: w, phase: w / phases * step})
		}
	}
	for _, w := range unique(short) {
		models = append(models, model{kind: log, window: w}, model{kind: elastic, window: w})
		for step := range 20 {
			models = append(models, model{kind: estimate, window: w, phase: w / 20 * time.Duration(step)})
		}
		for step := range 10 {
			models = append(models, model{kind: rolling, window: w, phase: w / 10 * time.Duration(step)})
		}
	}
	return models
}

// steps are times between two units: parts and multiples of the limit's own, and round ones around it.
func steps(own, lasts time.Duration) (all []time.Duration) {
	all = append(all, own)
	for _, part := range []float64{0.5, 0.8, 1.1, 1.25, 1.5, 5.0 / 3, 2, 2.5, 4, 5, 10} {
		all = append(all, time.Duration(part*float64(own)))
	}
	for e := time.Millisecond; e <= time.Minute; e *= 10 {
		for _, round := range []time.Duration{e, 2 * e, 5 * e / 2, 5 * e, 6 * e} {
			if round >= own/2 && round <= 100*own && round <= lasts {
				all = append(all, round)
			}
		}
	}
	return unique(all)
}

func unique(all []time.Duration) []time.Duration {
	slices.Sort(all)
	return slices.Compact(all)
}
