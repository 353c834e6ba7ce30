package sim

import (
	"container/heap"
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/callq/callq/internal/limit"
)

// world is one simulation. Everything in it happens in events, one at a time; true time is what
// the API's clock shows, and Postgres's runs beside it.
type world struct {
	ctx    context.Context
	seed   uint64
	rng    *rand.Rand
	lane   *lane
	set    setting
	mutant mutant

	now    time.Duration // true time, since base
	events events
	seq    int
	offset time.Duration // Postgres's clock is ahead by this
	drift  float64       // and by this part of the time passed

	stepped    time.Duration // the sum of its steps
	steppedAt  time.Duration // when it was set last
	savedAt    time.Duration // the last that a failover did not lose
	promotedAt time.Duration
	back       bool // one was back
	failedOver bool

	healing     bool
	outage      bool // the API answers nothing
	redisDown   bool // so is Redis
	unseen      bool // the clock was set forward, and no dispatcher has had a tick since; until then none restarts
	pace        pace
	workers     []*worker
	dispatchers []*process
	api         *api
	calls       map[int64]*callRecord
	overrides   map[string]limit.Rate
	pauses      map[pauseOf]time.Time
	doors       map[pauseOf]*door
	saved       *saved // a failover that loses what has happened since is about to happen
	record      record
	turns       int
	hurry       int // turns in this stretch
	inserted    int
	asked       time.Duration
}

// pace is how requests dawdle at present: prompt ones beside late ones are what exceeds a limit.
type pace int

const (
	prompt pace = iota
	late
	mixed
)

func newWorld(ctx context.Context, l *lane, seed uint64, m mutant) *world {
	w := &world{
		ctx: ctx, seed: seed, rng: rand.New(rand.NewPCG(seed, 1)), lane: l, mutant: m,
		calls: map[int64]*callRecord{}, overrides: map[string]limit.Rate{}, pauses: map[pauseOf]time.Time{}, doors: map[pauseOf]*door{},
	}
	w.record.digest = fnv.New64a()
	w.api = &api{w: w, requests: map[attemptID]*request{}, answered: map[answer]bool{}, running: map[*request]bool{}}
	w.set = draw(w)
	return w
}

// event is something that happens at a moment.
type event struct {
	at  time.Duration
	seq int
	act func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].seq < e[j].seq
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

// at plans an event.
func (w *world) at(at time.Duration, act func()) {
	w.seq++
	heap.Push(&w.events, event{max(at, w.now), w.seq, act})
}

func (w *world) after(d time.Duration, act func()) { w.at(w.now+d, act) }

// run lets events happen until done.
func (w *world) run(done func() bool) {
	for !done() {
		if len(w.events) == 0 {
			w.fail("the world goes on", 0, "", "nothing is planned any more")
		}
		e := heap.Pop(&w.events).(event)
		w.now = e.at
		w.lane.setClock(w.postgres())
		e.act()
	}
}

// postgres is what Postgres's clock shows.
func (w *world) postgres() time.Time {
	return base.Add(w.now + w.offset + time.Duration(float64(w.now)*w.drift))
}

// The draws.

func (w *world) chance(p float64) bool { return w.rng.Float64() < p }

// fault is a chance of something that heals.
func (w *world) fault(p float64) bool { return !w.healing && w.rng.Float64() < p*w.set.trouble }

func (w *world) between(low, high time.Duration) time.Duration {
	if high <= low {
		return low
	}
	return low + time.Duration(w.rng.Int64N(int64(high-low)+1))
}

func (w *world) intBetween(low, high int) int { return low + w.rng.IntN(high-low+1) }

func pick[T any](w *world, of ...T) T { return of[w.rng.IntN(len(of))] }

// record is what happened, for whoever reads a failure, and its digest, for a replay.
type record struct {
	lines  []line
	digest interface {
		Write([]byte) (int, error)
		Sum64() uint64
	}
}

type line struct {
	at    time.Duration
	call  int64
	limit string // or whatever else it is about
	text  string
}

func (l line) String() string {
	about := l.limit
	if l.call != 0 {
		about = fmt.Sprintf("call %d", l.call)
	}
	return fmt.Sprintf("%14s  %-12s %s", l.at, about, l.text)
}

func (w *world) note(call int64, about, format string, args ...any) {
	l := line{w.now, call, about, fmt.Sprintf(format, args...)}
	w.record.lines = append(w.record.lines, l)
	fmt.Fprintln(w.record.digest, l.at, call, about, l.text)
}

// failure is a rule that did not hold. It ends the world.
type failure struct {
	seed  uint64
	rough string // " -rough", where it was
	rule  string
	text  string
	lines []line
}

func (f *failure) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d: %s: %s\n", f.seed, f.rule, f.text)
	for _, l := range f.lines {
		fmt.Fprintf(&b, "  %s\n", l)
	}
	fmt.Fprintf(&b, "  again: go test -C verification ./sim -run TestSimulation -seed %d%s -v", f.seed, f.rough)
	return b.String()
}

const linesShown = 60

// fail says which rule does not hold, with the last events of the call or limit, and of what
// concerns all: clocks, processes, operators.
func (w *world) fail(rule string, call int64, about, format string, args ...any) {
	f := &failure{seed: w.seed, rule: rule, text: fmt.Sprintf("at %s: ", w.now) + fmt.Sprintf(format, args...)}
	if w.mutant.rough {
		f.rough = " -rough"
	}
	for i := len(w.record.lines) - 1; i >= 0 && len(f.lines) < linesShown; i-- {
		l := w.record.lines[i]
		if l.call == 0 && l.limit == "" || call != 0 && l.call == call || about != "" && l.limit == about || call == 0 && about == "" {
			f.lines = append([]line{l}, f.lines...)
		}
	}
	panic(f)
}

// must fails the world for an error that no fault explains.
func (w *world) must(err error) {
	if err != nil {
		w.fail("no error is without a cause", 0, "", "%v", err)
	}
}
