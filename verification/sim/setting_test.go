package sim

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/policy"
)

// setting is what a seed draws once: the rules, how much there is to do and how much goes wrong.
type setting struct {
	kind        kind
	rules       policy.Policy
	window      time.Duration // the one that sets the pace
	longest     time.Duration
	span        time.Duration // how long there are faults and producers; then the world heals
	stretches   []time.Duration
	stretch     time.Duration // how long each is
	tick        time.Duration // of the dispatchers
	hurries     int           // turns in a stretch after which looks come half as often
	calls       int
	keys        []string
	lines       int  // that a claim looks at
	own         bool // some calls have a handler of their own
	unique      bool // some have a unique key
	dispatchers int
	workers     int
	slots       int
	trouble     float64 // 1: as many faults as usual
	loss        float64 // of messages, statements and answers, each
	apiErrors   float64
	refusals    float64          // beside those when the API refuses everything
	pulses      map[string]pulse // hours to what they mean
	failover    policy.Failover
	queues      bool // the API stands still at times, and its kernel takes requests in; limits have no slack
}

// kind is how large a world is.
type kind int

const (
	day   kind = iota // 24 h: stretches of bursts and faults, and lulls between them
	crowd             // 5,000 calls at once
	hour              // one stretch, for mutants, and narrow windows: what is wrong shows soon
)

// crowdEvery is how many seeds there are for each one that is a crowd.
const crowdEvery = 25

func draw(w *world) setting {
	s := setting{
		window:      pick(w, 50*time.Millisecond, 200*time.Millisecond, 700*time.Millisecond, time.Second, time.Second, 2*time.Second, 5*time.Second, 10*time.Second, 30*time.Second, time.Minute, 10*time.Minute, time.Hour, 6*time.Hour),
		dispatchers: pick(w, 2, 2, 3),
		workers:     w.intBetween(2, 3),
		slots:       pick(w, 1, 2, 4, 8, 16, 32),
		trouble:     pick(w, 0, 0.3, 1, 1, 2, 3),
		loss:        pick(w, 0, 0.02, 0.1),
		apiErrors:   pick(w, 0, 0.05, 0.3),
		refusals:    pick(w, 0, 0, 0.1, 0.4),
		own:         w.chance(0.4),
		unique:      w.chance(0.3),
		queues:      w.chance(0.5),
		keys:        []string{""},
		hurries:     25,
		failover:    pick(w, policy.Witnessed, policy.Witnessed, policy.Strict),
	}
	units := pick[int64](w, 1, 2, 3, 5, 10, 20, 40)
	switch {
	case w.mutant.rough:
		s.kind = hour
		s.window = pick(w, time.Second, 2*time.Second, 5*time.Second, time.Minute)
		s.trouble, s.loss, s.apiErrors, s.hurries = 2, 0.1, 0.3, 80
	case w.seed%crowdEvery == 0:
		s.kind = crowd
		s.window = pick(w, time.Second, 2*time.Second, 5*time.Second, 10*time.Second)
		units = int64(w.intBetween(80, 200)) * int64(s.window/time.Second)
		s.slots = pick(w, 64, 128, 256)
		s.loss, s.refusals = min(s.loss, 0.02), min(s.refusals, 0.01)
	}
	if w.mutant.narrow {
		s.window, units = pick(w, 50*time.Millisecond, 200*time.Millisecond, 700*time.Millisecond), pick[int64](w, 1, 1, 2, 5)
	}
	s.queues, s.failover = s.queues || w.mutant.queues, cmp.Or(w.mutant.failover, s.failover)
	if w.mutant.calm {
		s.trouble, s.loss, s.apiErrors, s.refusals = 0, 0, 0, 0
		s.window, units, s.slots = time.Second, 20, 32
	}
	if w.mutant.newM0 { // it shows in http calls whose start has to be asked for again
		s.own, s.apiErrors, s.refusals, s.loss = false, 0, 0, 0.3
	}
	if w.chance(0.5) {
		s.keys = []string{"a", "b", "c", ""}[:w.intBetween(2, 4)]
	}
	s.lines = pick(w, 256, 1, 2, 3) // with few, blocked keys are put aside
	s.drawLimits(w, units)
	s.drawProofs(w)
	s.drawQueues(w)
	for _, l := range s.rules.Limits {
		s.longest = max(s.longest, l.Rate.Window)
	}
	main := s.rules.Limits[0]
	perWindow := float64(main.Rate.Units)
	if main.PerKey {
		perWindow *= float64(len(s.keys))
	}
	if main.CountCost {
		perWindow /= 2
	}
	s.drawTime(w, perWindow)
	s.tick = max(time.Second, s.stretch/30)
	for i := range s.rules.Queues {
		if w.mutant.late || w.chance(0.15) {
			s.rules.Queues[i].Hours = s.drawHours(w)
		}
	}
	return s
}

// drawTime draws how much there is to do, and when.
func (s *setting) drawTime(w *world, perWindow float64) {
	s.stretch = min(max(time.Duration(w.intBetween(4, 12))*s.window, 30*time.Second), 24*time.Hour)
	most := 400
	if s.window < time.Second { // more than can go, so that there are runs
		s.kind = hour
		s.stretch = max(time.Duration(float64(most)/perWindow*(0.2+0.6*w.rng.Float64())*float64(s.window)), 2*time.Second)
		perWindow *= 10
	}
	switch s.kind {
	case day:
		s.span = 24 * time.Hour
		most = 150
		for range min(w.intBetween(2, 4), int(s.span/s.stretch)) {
			s.stretches = append(s.stretches, w.between(0, s.span-s.stretch))
		}
	case crowd:
		s.calls = 5000
		s.stretch = max(time.Duration(float64(s.calls)/perWindow*0.8*float64(s.window)), 20*time.Second)
		s.span, s.stretches = s.stretch, []time.Duration{0}
		return
	case hour:
		s.span, s.stretches = s.stretch, []time.Duration{0}
	}
	n := float64(len(s.stretches)) * float64(s.stretch/s.window)
	s.calls = min(max(int(perWindow*n*(0.4+0.8*w.rng.Float64())), 5*len(s.stretches)), most)
}

// moment is when something is to happen: mostly in a stretch, up to some part of it.
func (w *world) moment(part float64) time.Duration {
	s := &w.set
	if w.chance(0.1) {
		return w.between(0, time.Duration(float64(s.span)*part)-1)
	}
	return pick(w, s.stretches...) + w.between(0, time.Duration(float64(s.stretch)*part)-1)
}

func (s *setting) drawLimits(w *world, units int64) {
	main := policy.Limit{
		Name: "main", Rate: limit.Rate{Units: units, Window: s.window},
		PerKey: w.chance(0.3), CountCost: w.chance(0.25), Anchor: pick(w, "", "", limit.AnchorStart, limit.AnchorFinish),
	}
	if w.chance(0.3) {
		main.Slack = w.between(s.window/50, s.window/4).Round(time.Millisecond)
		main.SendWithin = min(w.between(s.window/50, s.window/4).Round(time.Millisecond), 5*time.Second)
	}
	s.rules.Limits = append(s.rules.Limits, main)
	if w.chance(0.5) {
		second := policy.Limit{
			Name: "long", PerKey: w.chance(0.3), CountCost: w.chance(0.25), Anchor: pick(w, "", "", main.Anchor),
			Rate: limit.Rate{Units: units * int64(w.intBetween(2, 4)), Window: min(s.window*time.Duration(w.intBetween(2, 6)), 12*time.Hour)},
		}
		s.rules.Limits = append(s.rules.Limits, second)
	}
	if s.window <= 10*time.Second && w.chance(0.3) {
		s.rules.Limits = append(s.rules.Limits, policy.Limit{
			Name: "bucket", PerKey: w.chance(0.3), CountCost: w.chance(0.25), Anchor: pick(w, "", "", main.Anchor),
			Rate: bucket(w, units, s.window, 3+int64(w.intBetween(0, 2*int(units)))),
		})
	}
	if w.chance(0.4) {
		atOnce := policy.Limit{
			Name: "atonce", PerKey: w.chance(0.2), CountCost: w.chance(0.2), Rate: limit.Rate{Units: int64(w.intBetween(1, 6))},
		}
		if s.kind == crowd {
			atOnce.Rate.Units *= 20
		}
		s.rules.Limits = append(s.rules.Limits, atOnce)
	}
}

// drawProofs says what proves that a request has arrived. Where the API stands still only later answers do. Elsewhere it
// reads at once, which a slack vouches for.
func (s *setting) drawProofs(w *world) {
	within := w.between(10*time.Second, time.Minute).Round(time.Millisecond)
	for i := range s.rules.Limits {
		l := &s.rules.Limits[i]
		if s.queues {
			l.Slack, l.Proof, l.ArriveWithin = 0, limit.ProofLater, within
		} else {
			l.Slack = s.slack([]string{l.Name})
		}
		if w.chance(0.2) {
			l.RetryAfter = new(pick(w, 0, time.Second, time.Minute))
		}
	}
}

// bucket is a token bucket's rate.
func bucket(w *world, units int64, period time.Duration, burst int64) limit.Rate {
	r, err := limit.Parse(fmt.Sprintf("%d/%s", units, period), limit.TokenBucket, burst, "")
	w.must(err)
	return r
}

// spanOf is the window, or in what the units of a token bucket come in.
func spanOf(l policy.Limit) time.Duration {
	if l.Rate.Burst == 0 {
		return l.Rate.Window
	}
	period, err := time.ParseDuration(l.Rate.Period)
	if err != nil {
		panic(err) // it was drawn in seconds
	}
	return period
}

// drawQueues makes one queue under all limits and, sometimes, others that share some of them.
func (s *setting) drawQueues(w *world) {
	var all []string
	for _, l := range s.rules.Limits {
		all = append(all, l.Name)
	}
	for i := range pick(w, 1, 2, 2, 3) {
		low := w.between(50*time.Millisecond, max(s.window/10, 100*time.Millisecond)).Round(time.Millisecond)
		q := policy.Queue{
			Name: fmt.Sprintf("q%d", i), Limits: all, MaxAttempts: w.intBetween(1, 5), BackoffMin: low,
			BackoffMax: low * time.Duration(w.intBetween(1, 10)), OnLost: pick(w, "retry", "retry", "fail"),
			Timeout: w.between(500*time.Millisecond, min(max(s.window/2, 2*time.Second), time.Minute)).Round(time.Millisecond),
		}
		if w.chance(0.2) {
			q.OnRefused = "retry"
		}
		if w.chance(0.3) {
			q.MaxRefusals = w.intBetween(1, 4)
		}
		if w.mutant.timeout > 0 {
			q.Timeout = w.mutant.timeout
		}
		if i > 0 {
			from := w.rng.IntN(len(all))
			q.Limits = all[from:w.intBetween(from+1, len(all))]
		}
		s.rules.Queues = append(s.rules.Queues, q)
	}
	for i := range s.rules.Limits {
		if w.seed%3 == 1 { // no draw: worlds stay as they are
			s.rules.Limits[i].Shares = limit.Shares{limit.Retries: 20, "priority 0-3": 30}
		}
	}
}

func (s *setting) queue(name string) policy.Queue {
	for _, q := range s.rules.Queues {
		if q.Name == name {
			return q
		}
	}
	return policy.Queue{}
}

// slack is what the travelling of requests under these limits keeps to.
func (s *setting) slack(limits []string) time.Duration {
	least := time.Minute
	for _, l := range s.rules.Limits {
		if !slices.Contains(limits, l.Name) {
			continue
		}
		// Said by docs/design.md, not taken from internal/limit.
		slack := min(max(spanOf(l)/20, 500*time.Millisecond), time.Minute)
		if l.Slack > 0 {
			slack = l.Slack
		}
		least = min(least, slack)
	}
	return least
}
