package sim

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/callq/callq/dispatcher"
)

// process is a dispatcher's process: the real one, whose turns the world decides.
type process struct {
	w      *world
	n      int
	d      *dispatcher.Dispatcher
	frozen time.Duration // until then
	life   int
	down   bool
	look   int // the last look that was planned; others are not had
	tick   int // so of ticks
	tickAt time.Duration
	idle   int           // ticks in a row that found nothing to do
	looked time.Duration // when it had its last turn
	thaws  bool          // a turn waits for the end of the freeze: one, however many were missed
}

// start begins a process's life with its rules published, or a later one after a crash.
func (p *process) start() {
	p.life++
	d, err := dispatcher.New(dispatcher.Config{
		Pool: p.w.lane.dispatchers, Redis: p.w.lane.client, Policy: p.w.set.rules, Flows: p.w.set.lines, Failover: p.w.set.failover,
		Now:    func() time.Time { return base.Add(p.w.mutant.monotonic(p.w.now)) },
		Random: func(n int64) int64 { return p.w.rng.Int64N(n) },
		Logger: slog.New(&notes{p}),
	})
	p.w.must(err)
	p.d, p.down, p.frozen = d, false, 0
	p.w.note(0, "", "dispatcher %d starts", p.n)
	p.join()
}

// join has the process apply its rules, once workers have been asked what a failover lost.
func (p *process) join() {
	p.w.beat()
	if p.w.turns > 0 && p.w.unjudged() {
		p.turn(true)
		life := p.life
		p.w.after(p.w.between(0, time.Second), func() {
			if life == p.life {
				p.join()
			}
		})
		return
	}
	p.w.watch(func() {
		if err := p.d.Once(p.w.ctx); err != nil && !p.w.redisDown {
			p.w.must(err)
		}
	})
	p.w.handedOver()
	p.tickIn(p.w.between(0, p.w.set.tick))
}

func (p *process) tickIn(d time.Duration) {
	p.tick++
	p.tickAt = p.w.now + d
	tick, life := p.tick, p.life
	p.w.after(d, func() {
		if tick != p.tick || life != p.life {
			return
		}
		p.idle++
		if p.turn(true) {
			p.idle = 0
		}
		p.tickIn(p.w.untilNextTick(p.idle))
	})
}

// untilNextTick passes over the ticks at which nothing can be decided. Until there may be, a tick comes
// as often as it pleases, and later and later where none has found anything to do.
func (w *world) untilNextTick(idle int) time.Duration {
	var in *time.Duration
	var doubt bool
	w.must(w.lane.dispatchers.QueryRow(w.ctx, decisionSQL).Scan(&in, &doubt))
	if doubt {
		w.exchangeSoon()
		return w.between(w.set.tick*9/10, w.set.tick*11/10)
	}
	soon := min(w.set.tick<<min(idle, 10), max(5*time.Minute, w.set.longest/4, w.stepped/20))
	soon = w.between(soon*9/10, soon*11/10)
	if in == nil {
		return max(soon, w.between(idleMost/2, idleMost))
	}
	return min(max(soon, *in+w.between(0, w.set.tick)), idleMost)
}

const idleMost = 6 * time.Hour

// decisionSQL is in how long something falls due that a tick acts on: for a call, a sweeper, a shut limit. And whether a request
// is in doubt, which each tick asks about.
const decisionSQL = `
SELECT least(
    (SELECT min(CASE WHEN started_at IS NULL THEN least(start_by, handed_at + interval '5 s') ELSE deadline END) FROM callq.call_open),
    (SELECT min(least(coalesce(run_at, created_at), expires_at)) FROM call_queue WHERE status IN ('new', 'error')),
    (SELECT min(applied_at) FROM callq.call_limits WHERE complete_since IS NULL AND cardinality(queues) > 0)) - clock_timestamp(),
    EXISTS (SELECT FROM call_attempts WHERE arrived_by = '2200-01-01 00:00:00Z')`

// stir brings the ticks on: something has happened that nobody could foresee.
func (w *world) stir() {
	for _, p := range w.dispatchers {
		p.idle = 0
		if p.tickAt > w.now+w.set.tick && !p.down {
			p.tickIn(w.between(0, w.set.tick))
		}
	}
}

// turn has a tick or a look, and plans the next look as Run would.
func (p *process) turn(tick bool) (did bool) {
	if p.frozen > p.w.now {
		if life := p.life; !p.thaws {
			p.thaws = true
			p.w.at(p.frozen, func() {
				p.thaws = false
				if life == p.life {
					p.turn(tick)
				}
			})
		}
		return true
	}
	p.looked = p.w.now
	p.w.turns++
	p.w.hurry++
	p.w.beat()
	p.w.mutant.beforeTurn(p.w)
	lines := len(p.w.record.lines)
	var next time.Duration
	var err error
	p.w.watch(func() { next, err = p.d.Step(p.w.ctx, tick) })
	if err != nil {
		if !p.w.redisDown && !strings.Contains(err.Error(), "wait for Redis") {
			p.w.must(err)
		}
		next = time.Second
	}
	if tick {
		p.w.unseen = false
	}
	tells := func(l line) bool { return !strings.Contains(l.text, "Postgres's clock was set") } // where it drifts, each tick says so
	did = p.w.handedOver() || slices.ContainsFunc(p.w.record.lines[lines:], tells)
	if next < 59*time.Second { // else a tick comes sooner
		p.lookIn(max(next, p.w.lookFloor()))
	}
	return did
}

func (p *process) lookIn(d time.Duration) {
	p.look++
	look, life := p.look, p.life
	p.w.after(d, func() {
		if look == p.look && life == p.life {
			p.turn(false)
		}
	})
}

// lookFloor keeps looks from taking all the time there is: they only make things quicker.
func (w *world) lookFloor() time.Duration {
	floor := max(5*time.Millisecond, w.set.stretch/4000)
	return min(floor<<min(w.hurry/w.set.hurries, 20), max(floor, 10*time.Minute))
}

// wake is a producer's or worker's notice that there may be something to claim. It may be missed.
func (w *world) wake(heard float64) {
	for _, p := range w.dispatchers {
		if w.chance(heard) {
			p.lookIn(w.between(time.Millisecond, 2*w.lookFloor()))
		}
	}
}

// handedOver lets the workers see what came into Redis, and says whether there is anything.
func (w *world) handedOver() bool {
	some := false
	for _, k := range w.workers {
		if len(w.lane.pending(k.pool)) > 0 {
			k.takeIn(w.between(time.Millisecond, 5*time.Millisecond))
			some = true
		}
	}
	return some
}

func (w *world) startDispatchers() {
	for i := range w.set.dispatchers {
		p := &process{w: w, n: i}
		w.dispatchers = append(w.dispatchers, p)
		p.start()
	}
}

// restart kills a dispatcher and starts it again, with nothing in memory.
func (p *process) restart() {
	p.life++ // what it had planned is gone
	p.down = true
	life := p.life
	p.w.note(0, "", "dispatcher %d dies", p.n)
	var again func()
	again = func() {
		if p.life != life {
			return
		}
		if p.w.unseen {
			p.w.after(p.w.set.tick, again)
			return
		}
		p.start()
	}
	p.w.after(p.w.between(0, 10*p.w.set.tick), again)
}

func (p *process) String() string { return fmt.Sprintf("dispatcher %d", p.n) }
