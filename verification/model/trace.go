package model

import (
	"fmt"
	"slices"
)

// step is one thing that may happen next, and the state after it.
type step struct {
	kind  move
	a, b  int8 // the numbers in the move's text
	state State
	bad   string // the rule that the step itself broke
}

type move int8

const (
	moveLock move = iota
	moveLockCount
	moveEnterEpoch
	moveLook
	moveCountOccupied
	moveCountUsage
	moveCountOpen
	moveClockWentBack
	moveCommit
	moveCommitUnknown
	moveNothingToClaim
	moveClaimAborts
	moveDispatcherDies
	movePublishLock
	movePublish
	moveParcelLost
	moveParcelTwice
	moveParcelDropped
	moveDeliver
	moveGiveBack
	moveAsk
	moveAskAgain
	moveStartLock
	moveStart
	moveNotStarted
	moveCallGone
	moveAnswerLost
	moveStartAborts
	moveWrite
	moveGateShut
	moveAcknowledge
	moveAnswered
	moveUnanswered
	moveClose
	moveCloseLost
	moveWorkerDies
	moveSweepEpoch
	moveSweepLost
	moveSweepUnstarted
	moveResend
	moveDelete
	moveArrive
	moveTick
	moveClockForward
	moveClockBack
	moveStandbyStops
	moveFailover
	moveFailoverWhole
	moveCount
)

// texts say what each move is; heal is its turn in a run without faults, the lowest first, 0: not
// in one.
var texts = [moveCount]struct {
	text string
	heal int8
}{
	moveLock:           {"a dispatcher locks the limit and reads the clock", 14},
	moveLockCount:      {"a dispatcher locks the limit, reads the clock and counts what is occupied", 14},
	moveEnterEpoch:     {"a dispatcher finds a new epoch, in which units may be missing", 13},
	moveLook:           {"a dispatcher looks at the clock, and claims nothing", 13},
	moveCountOccupied:  {"it counts what is occupied", 2},
	moveCountUsage:     {"it counts usage", 2},
	moveCountOpen:      {"it counts open attempts", 2},
	moveClockWentBack:  {"it finds the clock set back, and gives up", 2},
	moveCommit:         {"its claim of %d commits and is handed over", 2},
	moveCommitUnknown:  {"its claim of %d commits; nothing is handed over", 0},
	moveNothingToClaim: {"it finds nothing to claim", 2},
	moveClaimAborts:    {"its claim ends without a commit", 0},
	moveDispatcherDies: {"a dispatcher dies and starts anew", 0},
	movePublishLock:    {"a publisher locks the limit", 0},
	movePublish:        {"it publishes a rate of %d, what had to be recalled is", 3},
	moveParcelLost:     {"the message of call %d attempt %d is lost", 0},
	moveParcelTwice:    {"the message of call %d attempt %d comes twice", 0},
	moveParcelDropped:  {"a worker takes the message of call %d attempt %d, which needs none", 4},
	moveDeliver:        {"a worker takes the message of call %d attempt %d", 10},
	moveGiveBack:       {"a worker gives call %d attempt %d back", 0},
	moveAsk:            {"it asks for the start of call %d attempt %d", 9},
	moveAskAgain:       {"a worker asks again for the start of call %d attempt %d", 9},
	moveStartLock:      {"the start of call %d attempt %d locks its row", 1},
	moveStart:          {"call %d attempt %d is started", 1},
	moveNotStarted:     {"the start of call %d attempt %d finds no row for it", 1},
	moveCallGone:       {"the start of call %d attempt %d finds its call gone", 1},
	moveAnswerLost:     {"the start of call %d attempt %d ran, and its answer is lost", 0},
	moveStartAborts:    {"the start of call %d attempt %d is lost on its way", 0},
	moveWrite:          {"the request of call %d attempt %d is written", 7},
	moveGateShut:       {"call %d attempt %d is not sent", 8},
	moveAcknowledge:    {"the request of call %d attempt %d is acknowledged", 0},
	moveAnswered:       {"the worker has the answer to call %d attempt %d", 5},
	moveUnanswered:     {"the worker ends call %d attempt %d without an answer", 6},
	moveClose:          {"the worker records how call %d attempt %d ended", 3},
	moveCloseLost:      {"how call %d attempt %d ended is recorded, and the worker does not know", 0},
	moveWorkerDies:     {"the worker with call %d attempt %d dies", 0},
	moveSweepEpoch:     {"the sweeper ends call %d attempt %d, of an older epoch", 11},
	moveSweepLost:      {"the sweeper ends call %d attempt %d as lost", 11},
	moveSweepUnstarted: {"the sweeper takes call %d attempt %d back, as unstarted", 0},
	moveResend:         {"the sweeper sends call %d attempt %d again", 12},
	moveDelete:         {"call %d is deleted", 0},
	moveArrive:         {"the request of call %d attempt %d arrives", 4},
	moveTick:           {"time passes", 15},
	moveClockForward:   {"Postgres's clock is set forward by %d", 0},
	moveClockBack:      {"Postgres's clock is set back by %d", 0},
	moveStandbyStops:   {"the standby stops following", 0},
	moveFailover:       {"the standby is promoted, without what was committed since", 16},
	moveFailoverWhole:  {"the standby is promoted, and workers find all that they were told", 0},
}

func (st *step) String() string {
	a, b := st.a, st.b
	switch st.kind {
	case moveCommit, moveCommitUnknown, movePublish, moveClockForward, moveClockBack:
	default:
		a++ // calls count from 1
	}
	text := texts[st.kind].text
	verbs := 0
	for _, c := range text {
		if c == '%' {
			verbs++
		}
	}
	return fmt.Sprintf(text, []any{a, b}[:verbs]...)
}

// Violation is a rule that does not hold, and the steps that lead there from the beginning.
type Violation struct {
	Rule  string
	Steps []string
}

func (v *Violation) String() string {
	text := "violated: " + v.Rule + "\n"
	for i, s := range v.Steps {
		text += fmt.Sprintf("%4d  %s\n", i+1, s)
	}
	return text
}

// retrace finds the steps again that lead to the violation, with calls that keep their numbers.
func (m *Model) retrace(v *visited, to *violating) *Violation {
	way := v.way(to.parent)
	slices.Reverse(way)
	way = append(way, to.print)
	s := m.initial()
	m.tidyKeepingNames(&s)
	result := &Violation{Rule: to.rule}
	for i, print := range way {
		var bad string
		if i == len(way)-1 && !to.healed {
			bad = to.rule
		}
		steps := m.next(&s)
		j := slices.IndexFunc(steps, func(st step) bool {
			return (st.bad == bad || st.bad == "") && m.isAlike(v, st.state, print)
		})
		if j < 0 {
			result.Steps = append(result.Steps, "a step that was not found again")
			return result
		}
		result.Steps = append(result.Steps, steps[j].String())
		s = steps[j].state
		if i < len(way)-1 {
			m.tidyKeepingNames(&s)
		}
	}
	if to.healed {
		_, did := m.heal(s, true)
		result.Steps = append(result.Steps, did...)
	}
	return result
}

// orders are those in which calls may be numbered.
var orders = [][callCount]int8{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}}

// isAlike says whether s has that print, with its calls in any order.
func (m *Model) isAlike(v *visited, s State, print uint64) bool {
	for _, from := range orders {
		named := s
		m.tidyKeepingNames(&named)
		named.renameCalls(from)
		named.orderAttempts()
		m.tidy(&named)
		if v.print(&named) == print {
			return true
		}
	}
	return false
}
