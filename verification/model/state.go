package model

// State is the world at a moment. It is comparable, and states that differ in nothing that can
// matter are made equal by tidy. Times are in ticks relative to now: those of Postgres to
// Postgres's clock, those of the API and the workers to true time. So setting Postgres's clock
// moves its times and no others.
type State struct {
	pg    postgres
	repl  postgres // what the standby has; zero unless it has stopped following
	split int8     // 1: the standby has stopped following, 2: it was promoted
	phase int8     // Postgres's clock modulo the width of a bucket

	seen  [slotCount]seen
	runs  [workerCount]run
	asks  [askCount]ask
	disps [dispCount]disp
	// publishing: a publisher holds the limit's lock and waits for the open rows.
	publishing bool
	left       Faults
	most       int8 // faults that may still happen, where Configuration.Most bounds them
}

// postgres is what a failover may lose. rows[i] belongs to the same attempt as State.seen[i].
type postgres struct {
	calls [callCount]call
	rows  [slotCount]row
	limit limitRow
	epoch int8
	// What Postgres's clock gained that some dispatcher saw (call_clock_gains), and when the last of it was seen.
	gain   int8
	gainAt int8
}

type status int8

const (
	waiting status = iota // new or error
	dispatched
	done
	failed
	gone // deleted, by retention or an operator
)

type call struct {
	status   status
	attempts int8
	fails    int8
}

type stage int8

const (
	absent  stage = iota
	open          // in call_open, not started
	started       // in call_open, started
	charged       // in the ledger, charged
	unsent        // in the ledger, not charged
)

// row is an attempt in call_open or call_attempts, and its charge in call_usage.
type row struct {
	stage   stage
	epoch   int8
	token   int8 // while it is open
	arrived int8 // acknowledged while it is open: its until is so long after its start; 0: that is not known
	claimed int8 // claimed_at; kept only where it can matter
	at      int8 // started_at, from the start on
	until   int8 // in the ledger
	used    bool // its unit is in call_usage ...
	label   int8 // ... in the bucket that ends then
	former  bool // it was open when the epoch was entered
}

type limitRow struct {
	version int8
	epoch   int8
	missing int8    // missing_until
	known   int8    // what was charged at known_at, and counted
	force   [2]int8 // effective_from of versions 1 and 2
}

// seen is what is true of an attempt outside of Postgres.
type seen struct {
	used     bool
	call     int8
	attempt  int8
	messages int8 // in Redis
	writes   int8 // requests that were written
	flight   int8 // ticks, plus one, within which what was written can still arrive; 0: nothing can
	landed   bool // it arrived, at ...
	arrival  int8 // ... true time; a window ago is as good as earlier
	version  int8 // of the limit, at the start
	lost     bool // a failover lost its claim: its row is gone for good
}

type runPhase int8

const (
	idle    runPhase = iota
	loaded           // has the attempt's data, and a connection
	asked            // has asked for the start
	granted          // the start was answered, the gate is open
	wrote            // the gate let the request through
	heard            // and it has arrived, so that there may be an answer
	told             // which the worker knows, for it was acknowledged
	ended            // knows how it ended, and records it
)

// run is what a worker does with its slot.
type run struct {
	phase  runPhase
	slot   int8 // whose start it was granted, or whose message it took
	token  int8
	m0     int8 // true time, while it can matter
	off    int8 // wrote, heard, told: m_sent - m0; ended: until - started_at
	by     int8 // heard, told: m_answer - m0, at the earliest
	ending ending
}

type ending int8

const (
	endUnsent    ending = iota // started or not, nothing was written nor will be
	endUnstarted               // the same, and nobody else may have started it
	endDone
	endError
)

// ask is a start statement on its way to Postgres or at work there.
type ask struct {
	token  int8
	slot   int8
	locked bool // it holds the row's lock
	m0     int8 // only where a repeated start takes a new m0
}

type dispPhase int8

const (
	resting dispPhase = iota
	clocked           // holds the lock, has read the clock
	halved            // has counted usage and not yet the open rows (TwoStatements)
	counted           // knows its room
)

type disp struct {
	phase dispPhase
	now   int8 // the clock as it read it
	room  int8
	// What limit.Clock will know: by how much Postgres's clock was set since the last look.
	unlooked int8
	gain     int8 // as it read it with the clock, while it claims
	gainAt   int8
	fresh    bool // it has not looked yet
}

func (m *Model) initial() State {
	var s State
	s.left, s.most = m.Faults, m.Most
	for c := m.Calls; c < callCount; c++ {
		s.pg.calls[c].status = gone
	}
	return s
}

func (m *Model) rate(version int8) int8 { return m.Rates[version] }

// newToken is one that nobody has.
func (s *State) newToken() int8 {
	most := int8(0)
	for i := range s.pg.rows {
		most = max(most, s.pg.rows[i].token, s.repl.rows[i].token)
	}
	for i := range s.runs {
		most = max(most, s.runs[i].token)
	}
	for i := range s.asks {
		most = max(most, s.asks[i].token)
	}
	return most + 1
}

// find is the slot of the attempt's row, open or ended, which may differ from the one that a worker
// was told of: a failover loses rows, and their numbers are given out again. -1: there is none.
func (s *State) find(call, attempt int8) int {
	for i := range s.seen {
		if g := &s.seen[i]; g.used && !g.lost && g.call == call && g.attempt == attempt && s.pg.rows[i].stage != absent {
			return i
		}
	}
	return -1
}

// isOpen says whether the slot's row is in call_open.
func (p *postgres) isOpen(i int) bool { return p.rows[i].stage == open || p.rows[i].stage == started }

// rowLocked says whether a start statement holds the row's lock.
func (s *State) rowLocked(i int) bool {
	for j := range s.asks {
		if s.asks[j].locked && int(s.asks[j].slot) == i {
			return true
		}
	}
	return false
}
