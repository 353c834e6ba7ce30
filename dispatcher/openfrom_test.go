package dispatcher

import (
	"testing"
	"time"
)

// Nothing that is open is of a smaller batch than the bound, and nothing is known of data that were not looked at.
func TestOpenFrom(t *testing.T) {
	t.Parallel()
	var o openFrom
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
