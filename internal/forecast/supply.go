package forecast

import (
	"math"
	"slices"
	"time"

	"github.com/callq/callq/internal/limit"
)

// Free is units that come free together, or one after another.
type Free struct {
	At    time.Duration // from now
	Units float64

	over time.Duration // they do evenly in so long up to At
}

// by is how many do until then.
func (f Free) by(at time.Duration) float64 {
	switch {
	case at >= f.At:
		return f.Units
	case at <= f.At-f.over:
		return 0
	}
	return f.Units * (1 - float64(f.At-at)/float64(f.over))
}

// supply gives out the units of a limit, or those of a key, or of keys that are alike.
type supply struct {
	returns limit.Returns
	opens   time.Duration // before that nothing is given out
	units   float64       // in a window, or at once
	room    float64       // that can be given out now; of a token bucket, at at
	frees   []Free        // of a sliding window and a concurrency: what is occupied, in order
	window  time.Duration // for how long a unit counts; 0: for as long as its call runs
	tooFar  bool          // what is asked for at once takes longer than the horizon, or too many windows
	windows float64       // so many windows count as one, so that it has as many units as are asked for at once

	at    time.Duration // of a token bucket
	burst float64
	pace  float64 // units a nanosecond

	now  time.Time // of a fixed window
	rate limit.Rate
	edge time.Duration // when the next window begins
	mean time.Duration // the length of a window
}

// newSupply makes the supply of keys that each have s, of which most units are asked for at once. hold is how long a call runs.
func newSupply(l *Limit, s State, keys, most float64, many bool, now time.Time, hold time.Duration) *supply {
	p := &supply{
		returns: l.Rate.Returns(), opens: l.Opens, units: keys * s.Units, room: keys * s.Room, window: l.Rate.Window,
		windows: 1, now: now, rate: l.Rate,
	}
	switch p.returns {
	case limit.Evenly:
		p.burst, p.pace = keys*float64(l.Rate.Burst), p.units/float64(l.Rate.Span())
		return p
	case limit.Together:
		p.edge = limit.Use{Rate: l.Rate}.NextLook(now, 0).Sub(now)
		const some = 50
		p.mean = l.Rate.Later(now.Add(p.edge), some).Sub(now.Add(p.edge)) / some
		return p
	}
	if p.window > 0 {
		hold = l.Rate.Passed(now, 0).Sub(now)
		p.window = hold
	}
	left := p.units - p.room // what is occupied of what there is; where a limit was lowered, some comes free for nobody
	for _, f := range slices.Backward(s.Frees) {
		if units := min(keys*f.Units, left); units > 0 {
			p.frees, left = append(p.frees, Free{At: f.At, Units: units}), left-units
		}
	}
	if left > 0 {
		p.frees = append(p.frees, Free{At: hold, Units: left})
	}
	slices.SortStableFunc(p.frees, func(a, b Free) int { return int(min(max(a.At-b.At, -1), 1)) })
	p.stretch(most, many, hold)
	return p
}

// stretch makes one window of several, until it has so many units: each comes free as it would if the others had been used at once.
func (p *supply) stretch(most float64, many bool, hold time.Duration) {
	if many {
		p.windows = math.Ceil(max(1, 20*most/p.units))
	}
	if p.tooFar = p.windows*float64(len(p.frees)+1) > mostFrees || p.windows*float64(hold) > float64(Horizon); p.tooFar {
		p.windows = 1
	}
	once := append([]Free{{Units: p.room}}, p.frees...)
	for n := 1.0; n < p.windows; n++ {
		for _, f := range once {
			if f.Units > 0 {
				p.frees = append(p.frees, Free{At: f.At + time.Duration(n*float64(hold)), Units: f.Units})
			}
		}
	}
	p.units *= p.windows
	slices.SortStableFunc(p.frees, func(a, b Free) int { return int(min(max(a.At-b.At, -1), 1)) })
}

// when is the earliest that n units can be given out.
func (p *supply) when(n float64) time.Duration {
	switch p.returns {
	case limit.Together:
		if n <= p.room {
			return p.opens
		}
		return max(p.opens, p.begins(math.Ceil((n-p.room)/p.units)-1))
	case limit.Evenly:
		return max(p.opens, p.at+span(math.Ceil((n-p.room)/p.pace)))
	}
	n = min(n, p.units) - p.room - 1e-6
	if n <= 0 {
		return p.opens
	}
	for _, f := range p.frees {
		if n <= f.Units {
			return max(p.opens, f.At-time.Duration((1-n/f.Units)*float64(f.over)))
		}
		n -= f.Units
	}
	return p.opens
}

// take gives out n units at a moment that is not before when(n). Their call runs for hold, and arrives after lag.
func (p *supply) take(at time.Duration, n float64, hold, lag time.Duration) {
	switch p.returns {
	case limit.Together:
		var begun float64
		if at >= p.edge {
			begun = math.Floor(float64(at-p.edge)/float64(p.mean)) + 1
			p.edge = p.begins(begun)
			for ; p.edge <= at; begun++ {
				p.edge = p.begins(1)
			}
			p.room = min(max(p.units, n), p.room+begun*p.units)
		}
		p.room = max(0, p.room-n)
		return
	case limit.Evenly:
		p.room, p.at = max(n, min(p.burst, p.room+p.pace*float64(at-p.at)))-n, at
		return
	}
	n = min(n, p.units)
	for len(p.frees) > 0 {
		f := &p.frees[0]
		units := f.by(at)
		p.room += units
		if units < f.Units {
			f.over -= time.Duration(units / f.Units * float64(f.over))
			f.Units -= units
			break
		}
		p.frees = p.frees[1:]
	}
	p.room -= n
	if p.window > 0 {
		hold = p.window + lag
	}
	used := Free{At: at + time.Duration(p.windows*float64(hold)), Units: n}
	if p.windows > 1 { // it took so long to give them out
		used.over = time.Duration(n / p.units * p.windows * float64(hold))
	}
	place := len(p.frees)
	for place > 0 && p.frees[place-1].At > used.At {
		place--
	}
	p.frees = slices.Insert(p.frees, place, used)
}

// begins is when a fixed window begins, so many after the next.
func (p *supply) begins(windows float64) time.Duration {
	if windows > 2 {
		return p.edge + span(windows*float64(p.mean))
	}
	return p.rate.Later(p.now.Add(p.edge), windows).Sub(p.now)
}
