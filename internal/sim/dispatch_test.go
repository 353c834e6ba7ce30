package sim

import (
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/relay"
)

// process is a dispatcher's process: the real one, whose turns the world decides.
type process struct {
	w      *world
	n      int
	d      *dispatcher.Dispatcher
	frozen time.Duration // until then
	life   int
	down   bool
	look   int  // the last look that was planned; others are not had
	thaws  bool // a turn waits for the end of the freeze: one, however many were missed
}

// start begins a process's life with its rules published, or a later one after a crash.
func (p *process) start() {
	p.life++
	d, err := dispatcher.New(dispatcher.Config{
		Pool: p.w.lane.dispatchers, Redis: p.w.lane.client, Rules: p.w.set.rules,
		Now:    func() time.Time { return base.Add(p.w.mutant.monotonic(p.w.now)) },
		Random: func(n int64) int64 { return p.w.rng.Int64N(n) },
		Logger: slog.New(&notes{p}),
	})
	p.w.must(err)
	p.d, p.down, p.frozen = d, false, 0
	p.w.note(0, "", "dispatcher %d starts", p.n)
	p.w.beat()
	if err := p.d.Once(p.w.ctx); err != nil && !p.w.redisDown {
		p.w.must(err)
	}
	p.w.handedOver()
	p.tickIn(p.w.between(0, p.w.set.tick))
}

func (p *process) tickIn(d time.Duration) {
	life := p.life
	p.w.after(d, func() {
		if life != p.life {
			return
		}
		did := p.turn(true)
		next := p.w.set.tick
		if p.w.healing { // what heals takes long with few calls a window
			next = p.w.patience(did)
		}
		p.tickIn(p.w.between(next*9/10, next*11/10))
	})
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
	p.w.turns++
	p.w.beat()
	p.w.mutant.beforeTurn(p.w)
	lines := len(p.w.record.lines)
	next, err := p.d.Turn(p.w.ctx, tick)
	if err != nil {
		if !p.w.redisDown && !strings.Contains(err.Error(), "wait for Redis") {
			p.w.must(err)
		}
		next = time.Second
	}
	did = p.w.handedOver() || len(p.w.record.lines) > lines
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
	floor := max(5*time.Millisecond, w.set.span/4000)
	return floor << min(w.turns/80, 10)
}

// patience is the time to the next tick while the world heals: longer where nothing happens.
func (w *world) patience(did bool) time.Duration {
	w.boosts++
	if did {
		w.boosts = 0
	}
	return min(w.set.tick<<min(w.boosts/(2*len(w.dispatchers)), 10), max(w.set.tick, w.set.longest/4, w.stepped/20))
}

// wake is a producer's or worker's notice that there may be something to claim. It may be missed.
func (w *world) wake() {
	for _, p := range w.dispatchers {
		if w.chance(0.5) {
			p.lookIn(w.between(time.Millisecond, 2*w.lookFloor()))
		}
	}
}

// handedOver lets the workers see what came into Redis, and says whether there is anything.
func (w *world) handedOver() bool {
	some := false
	for _, k := range w.workers {
		if list, err := w.lane.redis.List(relay.Key(k.pool)); err == nil && len(list) > 0 {
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
		if wait := p.w.shy - p.w.now; wait > 0 {
			p.w.after(wait+time.Millisecond, again)
			return
		}
		p.start()
	}
	p.w.after(p.w.between(0, 10*p.w.set.tick), again)
}

func (p *process) String() string { return fmt.Sprintf("dispatcher %d", p.n) }
