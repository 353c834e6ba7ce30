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

// A poll that does not go back to the beginning passes what was due long ago and was committed since: it
// is found by one that does, and that comes as soon as it may.
func TestScanWindow(t *testing.T) {
	t.Parallel()
	const took = 40 * time.Millisecond
	now, drained := time.Unix(1000, 0), time.Unix(1000, 0)
	r := scanWindow{drained: map[string]time.Time{}}
	poll := func(behind time.Duration) (again time.Duration) {
		t.Helper()
		queues, since := r.begin(now)
		if whole := behind == 0; whole != (len(queues) == 0) {
			t.Fatalf("goes back to the beginning: %v, want %v", len(queues) == 0, whole)
		}
		if behind > 0 && drained.Sub(since[0]) != behind {
			t.Errorf("goes back by %s, want %s", drained.Sub(since[0]), behind)
		}
		now = now.Add(took)
		r.end(now.Add(-took), now, nil)
		r.drained["q"] = drained
		return r.again(now)
	}
	if again := poll(0); again < time.Second {
		t.Errorf("again in %s though nothing was passed", again)
	}
	ends := now.Add(scanRest * took)
	if again, want := poll(scanBehind), scanWide-took; again != want {
		t.Errorf("again in %s, want %s", again, want)
	}
	again := poll(scanNear)
	if want := scanWide - 2*took; again != want {
		t.Errorf("again in %s, want %s", again, want)
	}
	now = now.Add(again)
	if again, want := poll(scanBehind), ends.Sub(now); again != want {
		t.Errorf("again in %s, want %s: then one may go back to the beginning", again, want)
	}
	now = ends
	poll(0)
}

// A drain begins where its poll found the first row, and where that found none, with what may have been committed since.
func TestDrainBeginsAtTheFirst(t *testing.T) {
	t.Parallel()
	drained, first := time.Unix(1000, 0), time.Unix(990, 0)
	for name, c := range map[string]struct {
		drained time.Time
		found   *time.Time
		want    time.Time
	}{
		"one was found":                     {drained, &first, first},
		"one before all times":              {drained, &time.Time{}, time.Time{}},
		"none":                              {drained, nil, drained.Add(-scanBehind)},
		"none, and nothing is known":        {time.Time{}, nil, time.Time{}},
		"one was found, nothing was before": {time.Time{}, &first, first},
	} {
		r := scanWindow{drained: map[string]time.Time{"q": c.drained}}
		r.begin(time.Unix(1, 0))
		r.end(time.Unix(1, 0), time.Unix(1, 0), []dueQueue{{Name: "q", InboxAt: c.found, FlowAt: &first}})
		if inbox, flow := r.since("q"); !inbox.Equal(c.want) || !flow.Equal(first) {
			t.Errorf("%s: the inbox from %s on, flows from %s, want %s and %s", name, inbox, flow, c.want, first)
		}
	}
}
