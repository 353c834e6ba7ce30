package limit

import "math"

// Quota is what a limit still allows: in all, or to each key.
type Quota struct {
	PerKey    bool
	CountCost bool             // a call takes its cost; else 1
	Most      int64            // that a call may ever take
	MostOf    map[string]int64 // keys of which that is something else
	// Room is what may be given out now, by key; by "" where the limit is not per key. A key that
	// is not there has none.
	Room map[string]int64
}

func (q Quota) key(key string) string {
	if q.PerKey {
		return key
	}
	return ""
}

func (q Quota) units(cost int64) int64 {
	if q.CountCost {
		return cost
	}
	return 1
}

// Admission gives out what a queue's limits still allow, call by call: all of them admit a call,
// or none is charged.
type Admission []Quota

// Most is the most calls of a key that could be admitted now.
func (a Admission) Most(key string) int64 {
	most := int64(math.MaxInt64)
	for _, q := range a {
		most = min(most, q.Room[q.key(key)])
	}
	return max(0, most)
}

// Fits says whether every limit has a call's units. shared says that a limit which is not the key's own has
// not, so that other keys are no better off.
func (a Admission) Fits(key string, cost int64) (fits, shared bool) {
	fits = true
	for _, q := range a {
		if q.Room[q.key(key)] < q.units(cost) {
			fits = false
			shared = shared || !q.PerKey
		}
	}
	return fits, shared
}

// Admit takes a call's units from every limit and answers true, or takes nothing, as Fits says.
func (a Admission) Admit(key string, cost int64) (ok, shared bool) {
	if ok, shared = a.Fits(key, cost); !ok {
		return false, shared
	}
	for _, q := range a {
		q.Room[q.key(key)] -= q.units(cost)
	}
	return true, false
}

// Exceeds says whether a call of this cost could never be admitted, and by which limit (its place
// in a).
func (a Admission) Exceeds(key string, cost int64) (int, bool) {
	for i, q := range a {
		most, own := q.MostOf[q.key(key)]
		if !own {
			most = q.Most
		}
		if q.units(cost) > most {
			return i, true
		}
	}
	return 0, false
}
