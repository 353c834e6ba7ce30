package dispatcher

import (
	"math/rand/v2"
	"testing"
)

// A pool gets twice its free slots of unstarted attempts; one that has plenty gets more only when
// that has gone down, and is not looked at again at once.
func TestRoomOfAPool(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		free, unstarted, room int
		rests                 bool
	}{
		{20, 0, 40, false},
		{20, 35, 5, false}, // few are claimed as they come
		{20, 40, 0, false},
		{20, 300, 0, true},
		{1000, 0, 2000, false},
		{1000, 1500, 500, false},
		{1000, 1501, 0, true},
		{1000, 2500, 0, true},
	} {
		r := newRoster([]*pool{{Name: "p", Workers: 1, Free: c.free, Unstarted: c.unstarted}})
		if got := r.room(); got != c.room {
			t.Errorf("%d unstarted for %d free slots: room for %d, want %d", c.unstarted, c.free, got, c.room)
		}
		if got := r.full().blockedFor > 0; got != c.rests {
			t.Errorf("%d unstarted for %d free slots: rests %t, want %t", c.unstarted, c.free, got, c.rests)
		}
	}
}

// A call may come to each pool that handles its task and has room, as often as it has that: one that a pool gave
// back would come to the same for ever if it were the roomiest.
func TestPoolsAreChosenByLot(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 1))
	chosen := map[string]int{}
	for range 1000 {
		r := &roster{pools: []*pool{
			{Name: "roomy", Tasks: []string{"http"}, room: 30},
			{Name: "other task", Tasks: []string{"mail"}, room: 50},
			{Name: "small", Tasks: []string{"http", "mail"}, room: 10},
			{Name: "full", Tasks: []string{"http"}},
		}}
		p := r.choose("http", random.Int64N)
		if chosen[p.Name]++; p.Unstarted != 1 {
			t.Errorf("%d unstarted attempts of %s, want 1", p.Unstarted, p.Name)
		}
	}
	if chosen["roomy"]+chosen["small"] != 1000 || chosen["small"] < 200 || chosen["small"] > 300 {
		t.Errorf("chosen: %v, want three to one", chosen)
	}
}
