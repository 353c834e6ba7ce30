package pools

import (
	"math/rand/v2"
	"testing"
)

// A pool gets as many unstarted attempts as it has free slots, and up to twice that if as much ends soon; one that has plenty
// gets more only when that has gone down, and is not looked at again at once.
func TestCapacityOfAPool(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		free, soon, unstarted, room int
		rests                       bool
	}{
		{20, 0, 0, 20, false},
		{20, 0, 15, 5, false}, // few are claimed as they come
		{20, 0, 20, 0, false},
		{20, 5, 20, 5, false},
		{20, 100, 35, 5, false},
		{20, 100, 40, 0, false},
		{20, 100, 300, 0, true},
		{0, 100, 0, 0, false},
		{1000, 0, 0, 1000, false},
		{1000, 1000, 0, 2000, false},
		{1000, 1000, 1500, 500, false},
		{1000, 1000, 1501, 0, true},
		{1000, 1000, 2500, 0, true},
	} {
		r := withCapacity([]*Pool{{Name: "p", Workers: 1, AllSlots: c.free, Soon: c.soon, Unstarted: c.unstarted}})
		if got := r.Capacity(); got != c.room {
			t.Errorf("%d unstarted for %d free slots: capacity for %d, want %d", c.unstarted, c.free, got, c.room)
		}
		if got := r.AboveHighWater(); got != c.rests {
			t.Errorf("%d unstarted for %d free slots: rests %t, want %t", c.unstarted, c.free, got, c.rests)
		}
	}
}

// Few attempts make a message a worker, many four, and none takes more than a quarter of a worker's slots.
func TestPacking(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		workers, slots, attempts, want int
		task                           string
	}{
		{1, 100, 1, 1, "own"},
		{2, 100, 4, 2, "own"},
		{2, 100, 5, 3, "own"},
		{2, 100, 16, 8, "own"},
		{2, 100, 64, 8, "own"},
		{2, 100, 100, 12, "own"},
		{2, 100, 1000, 25, "own"},
		{4, 4000, 4000, 128, "own"},
		{2, 20, 100, 5, "own"},
		{1, 1, 9, 1, "own"},
		{0, 0, 9, 1, "own"}, // nobody is alive
		{2, 100, 5, 5, "http"},
		{4, 100, 20, 20, "http"},
		{4, 200, 40, 32, "http"},
		{4, 100, 400, 25, "http"},
	} {
		p := &Pool{Workers: c.workers, Slots: c.slots}
		if got := p.Packing(c.task, c.attempts); got != c.want {
			t.Errorf("%d workers with %d slots each get %d attempts of %s: %d a message, want %d", c.workers, c.slots, c.attempts, c.task, got, c.want)
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
		r := &Pools{List: []*Pool{
			{Name: "roomy", Tasks: []string{"http"}, Capacity: 30},
			{Name: "other task", Tasks: []string{"mail"}, Capacity: 50},
			{Name: "small", Tasks: []string{"http", "mail"}, Capacity: 10},
			{Name: "full", Tasks: []string{"http"}},
		}}
		p := r.Choose("http", random.Int64N)
		if chosen[p.Name]++; p.Unstarted != 1 {
			t.Errorf("%d unstarted attempts of %s, want 1", p.Unstarted, p.Name)
		}
	}
	if chosen["roomy"]+chosen["small"] != 1000 || chosen["small"] < 200 || chosen["small"] > 300 {
		t.Errorf("chosen: %v, want three to one", chosen)
	}
}
