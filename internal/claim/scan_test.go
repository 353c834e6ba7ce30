package claim

import (
	"testing"
	"time"
)

// Nothing that is open is of a smaller batch than the bound, and nothing is known of data that were not looked at.
func TestLowWater(t *testing.T) {
	t.Parallel()
	var o lowWater
	three, six := int64(3), int64(6)
	for _, step := range []struct {
		what        string
		epoch       string
		drawn, from int64
		found       *int64
		after       int64
	}{
		{"nothing is known at first", "e1", 5, 0, nil, 5},
		{"others opened some meanwhile", "e1", 9, 5, &six, 6},
		{"they are open still", "e1", 12, 6, &six, 6},
		{"they have ended", "e1", 13, 6, nil, 13},
		{"Postgres failed over", "e2", 14, 0, &six, 6},
		{"the data were rolled back", "e2", 14, 0, nil, 14},
		{"the numbers were set back, and larger ones are open", "e2", 3, 0, &six, 3},
		{"smaller ones are open too", "e2", 4, 3, &three, 3},
	} {
		if from := o.draw(step.epoch, step.drawn); from != step.from {
			t.Errorf("%s: looked from %d on, want %d", step.what, from, step.from)
		}
		o.found(step.found, time.Time{})
		if from := o.in(step.epoch); from != step.after {
			t.Errorf("%s: open from %d on, want %d", step.what, from, step.after)
		}
		if from := o.in("another"); from != 0 {
			t.Errorf("%s: in another epoch from %d on", step.what, from)
		}
	}
}

// A whole poll comes as seldom as it must. What is committed a while after it fell due is found within four times as long,
// or by a whole poll.
func TestScanWindow(t *testing.T) {
	t.Parallel()
	const took = 40 * time.Millisecond // a whole poll
	const seldom, lasts = scanRest * took, 3 * scanRest * took
	for _, late := range []time.Duration{0, scanNear / 2, time.Second, 3 * time.Second, 10 * time.Second, 100 * time.Second} {
		for _, woken := range []time.Duration{20 * time.Millisecond, time.Second} {
			r, start, whole := scanWindow{drained: map[string]time.Time{}}, time.Unix(1000, 0), 0
			unseen := map[time.Time]bool{}
			for now := start; now.Sub(start) < lasts; now = now.Add(min(r.again(now), woken)) {
				unseen[now] = true // committed just now
				since, began := r.begin(now), now
				for at := range unseen {
					if since["q"].After(at.Add(-late)) {
						continue
					}
					delete(unseen, at)
					if wait := now.Sub(at); wait > min(4*late, seldom+took)+woken {
						t.Fatalf("%s late, polls every %s: found after %s", late, woken, wait)
					}
				}
				if r.whole {
					whole++
					now = now.Add(took)
				}
				r.end(began, now, nil)
				r.drained["q"] = began
			}
			if most := int(lasts/seldom) + 1; whole > most {
				t.Errorf("%s late, polls every %s: %d whole ones, want at most %d", late, woken, whole, most)
			}
		}
	}
}

// Where whole polls take no longer than others, each is one: to look back no further saves nothing.
func TestQuickPollsAreWhole(t *testing.T) {
	t.Parallel()
	r, now := scanWindow{drained: map[string]time.Time{"q": time.Unix(1, 0)}}, time.Unix(1000, 0)
	poll := func(took time.Duration, whole bool) {
		t.Helper()
		r.begin(now)
		if r.whole != whole {
			t.Errorf("after %s a poll is whole: %v, want %v", now.Sub(time.Unix(1000, 0)), r.whole, whole)
		}
		now = now.Add(took)
		r.end(now.Add(-took), now, nil)
	}
	poll(5*time.Millisecond, true) // the server is far, but nobody knows yet
	poll(5*time.Millisecond, false)
	now = now.Add(scanRest * 5 * time.Millisecond)
	for range 3 {
		poll(11*time.Millisecond, true)
	}
	poll(12*time.Millisecond, true)
	poll(5*time.Millisecond, false)
}

// A drain begins where its poll found the first row, and where it found none there is nothing to drain.
func TestDrainBeginsAtTheFirst(t *testing.T) {
	t.Parallel()
	first, never := time.Unix(990, 0), orNever(nil)
	if !never.After(time.Now().AddDate(1000, 0, 0)) {
		t.Errorf("never is %s", never)
	}
	for name, c := range map[string]struct {
		queues       []dueQueue
		inbox, flows time.Time
	}{
		"both were found":        {[]dueQueue{{Name: "q", InboxAt: &first, FlowAt: &first}}, first, first},
		"one before all times":   {[]dueQueue{{Name: "q", InboxAt: &time.Time{}}}, time.Time{}, never},
		"none":                   {[]dueQueue{{Name: "q"}}, never, never},
		"the queue was not due":  {[]dueQueue{{Name: "other", InboxAt: &first}}, time.Time{}, time.Time{}},
		"only a flow, that woke": {[]dueQueue{{Name: "q", FlowAt: &first}}, never, first},
	} {
		r := scanWindow{drained: map[string]time.Time{}}
		r.begin(time.Unix(1, 0))
		r.end(time.Unix(1, 0), time.Unix(1, 0), c.queues)
		if inbox, flows := r.since("q"); !inbox.Equal(c.inbox) || !flows.Equal(c.flows) {
			t.Errorf("%s: the inbox from %s on, flows from %s, want %s and %s", name, inbox, flows, c.inbox, c.flows)
		}
	}
}
