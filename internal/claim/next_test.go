package claim

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// When a queue is polled again after whatever became of its claim.
func TestNext(t *testing.T) {
	t.Parallel()
	const hour, short50 = time.Hour, 50 * time.Millisecond
	for _, c := range []struct {
		name string
		event
		state
		want outcome
	}{
		{"not due", notDue, state{wait: short50}, outcome{pollIn: short50}},
		{"no unit comes free for long", blocked, state{wait: hour}, outcome{pollIn: pollLater}},
		{"another claim has the locks", locked, state{}, outcome{pollIn: MinGap}},
		{"the clock was set back", setBack, state{}, outcome{pollIn: MinGap}},
		{"the epoch was entered", outdated, state{}, outcome{pollIn: MinGap, more: true}},
		{"workers are asked", unjudged, state{}, outcome{pollIn: judgeWait, blockedFor: judgeWait}},
		{"usage is not counted", uncounted, state{}, outcome{pollIn: errRetry, blockedFor: errRetry}},
		{"reserved", reserved, state{wait: short50}, outcome{pollIn: short50, blockedFor: short50}},
		{"a budget is short", short, state{wait: hour}, outcome{pollIn: pollLater, blockedFor: pollLater}},
		{"outside hours", closed, state{wait: hour}, outcome{pollIn: pollLater, blockedFor: pollLater}},
		{"paused for long: resume tells", paused, state{wait: hour}, outcome{pollIn: pollLater}},
		{"nobody serves it", unserved, state{}, outcome{pollIn: pollLater}},
		{"full workers", full, state{}, outcome{pollIn: fullRetry, hurried: true}},
		{"workers with more than enough", full, state{highWater: true}, outcome{pollIn: fullRetry, blockedFor: fullRetry, hurried: true}},
		{"something was drained, and the workers are full", full, state{soon: true}, outcome{pollIn: MinGap, hurried: true}},
		{"all was claimed", claimed, state{wait: pollLater}, outcome{pollIn: pollLater}},
		{"some was claimed", claimed, state{wait: pollLater, soon: true}, outcome{pollIn: MinGap}},
		{"there is more", claimed, state{wait: pollLater, more: true, soon: true}, outcome{pollIn: MinGap, more: true}},
		{"there is more, for some pools", claimed, state{wait: pollLater, more: true, someFull: true}, outcome{pollIn: pollLater, more: true, hurried: true}},
		{"there is more, for no worker", claimed, state{wait: pollLater, more: true, someFull: true, allFull: true}, outcome{pollIn: fullRetry, hurried: true}},
		{"all is claimed that workers can have", claimed, state{wait: pollLater, someFull: true, allFull: true}, outcome{pollIn: pollLater, hurried: true}},
		{"a limit is used up", claimed, state{wait: hour, stuck: true}, outcome{pollIn: hour, blockedFor: hour}},
		{"a limit at once is used up", claimed, state{wait: pollLater, stuck: true, told: true}, outcome{pollIn: pollLater, hurried: true}},
		{"some keys are used up", claimed, state{wait: short50, told: true}, outcome{pollIn: short50, hurried: true}},
	} {
		if diff := cmp.Diff(c.want, outcomeOf(c.event, c.state), cmp.AllowUnexported(outcome{})); diff != "" {
			t.Errorf("%s: %s", c.name, diff)
		}
	}
}
