package dispatcher

import "testing"

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
