package console

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/callq/callq/internal/admin"
)

// The curve is what counts at a time: never more than the limit allows, where a unit is taken as soon as another is free.
func TestRolling(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 9, 0, 0, 0, time.UTC)
	at := func(s float64) time.Time { return now.Add(time.Duration(s * float64(time.Second))) }
	d := &admin.Door{Now: now, Since: at(-40), Until: at(10), Most: 2}
	for _, s := range []float64{-45, -35, -25, -25, -15, -15, -5} { // windows of 10 s: units come free just as others are taken
		d.Arrivals = append(d.Arrivals, admin.Arrival{At: at(s), Free: new(at(s + 10)), Units: 1})
	}
	d.Arrivals = append(d.Arrivals, admin.Arrival{At: at(-1), Units: 1}) // is open
	counted := rolling(d, 50)                                            // a second each
	want := []int64{
		1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2,
		1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1,
	}
	if !slices.Equal(counted[36:], want[36:]) || slices.Max(counted) != 2 {
		t.Errorf("%v", counted)
	}
	p := doorPicture(d, 390, 200)
	if p.Nobody || !strings.HasSuffix(p.Label, "at most 2 counted at once, of 2") || strings.Count(p.Ticks, "M") != 5 {
		t.Errorf("%+v", p)
	}
	if p := doorPicture(&admin.Door{Now: now, Since: at(-40), Until: at(10)}, 390, 200); !p.Nobody {
		t.Errorf("nothing was sent: %+v", p)
	}
	refused := &admin.Door{
		Now: now, Since: at(-40), Until: at(10), Most: 2, Arrivals: []admin.Arrival{{At: at(-5), Units: 1, Refused: true}},
		Closed: []admin.Closing{{From: at(-5), Until: new(at(3)), Reason: "429"}},
	}
	if p := doorPicture(refused, 390, 200); p.Ticks != "" || strings.Count(p.Refusals, "M") != 1 || len(p.Shut) != 1 || p.Shut[0].Text != "429" {
		t.Errorf("a refusal: %+v", p)
	}
}

func TestRoundStep(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]time.Duration{
		0: time.Millisecond, 3 * time.Millisecond: 5 * time.Millisecond, 999 * time.Millisecond: time.Second, 7 * time.Second: 10 * time.Second, 50 * time.Second: time.Minute,
		3 * time.Hour: 5 * time.Hour, 40 * time.Hour: 48 * time.Hour, 100 * 24 * time.Hour: 100 * 24 * time.Hour,
	} {
		if got := roundStep(d); got != want {
			t.Errorf("%s: %s, want %s", d, got, want)
		}
	}
}
