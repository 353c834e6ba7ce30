package pools

import "time"

// Attempts that ended within turnoverFor say how many end within soon.
const (
	turnoverFor = time.Second
	soon        = 50 * time.Millisecond
)

// turnover describes how many attempts of each pool end soon, by how many ended of late: what one dispatcher handed over and is no
// longer open. Where others hand over, too, it counts too few, which is safe. One slow call that ends is no turnover, so it reads
// back much further than ahead. It belongs to the dispatcher's claims; the zero value is ready, and begins with none.
type turnover struct {
	of map[string][]ends // by pool, the oldest first: at most one from before turnoverFor, and all since
}

// ends are how many attempts had ended at a moment, from an unknown number on.
type ends struct {
	at time.Time
	n  int
}

// handed notes that n attempts, whose claim is committed, go to a pool.
func (t *turnover) handed(pool string, n int) {
	for i := range t.of[pool] { // the next count finds them open, or ended
		t.of[pool][i].n -= n
	}
}

// count sets how many attempts of each pool end soon.
func (t *turnover) count(list []*Pool, at time.Time) {
	seen := make(map[string][]ends, len(list)) // without pools that are gone
	for _, p := range list {
		all := append(t.of[p.Name], ends{at, -p.Started - p.Unstarted})
		for len(all) > 1 && at.Sub(all[1].at) >= turnoverFor {
			all = all[1:]
		}
		n := max(0, all[len(all)-1].n-all[0].n)
		seen[p.Name], p.Soon = all, int(time.Duration(n)*soon/max(at.Sub(all[0].at), turnoverFor/10))
	}
	t.of = seen
}
