package recovery

import "context"

// countWaiting counts the waiting calls of queues whose cap is new, and every minute of all that have one.
func (r *Recoverer) countWaiting(ctx context.Context, _ View) (n int, err error) {
	all := !r.Now().Before(r.recount)
	if all {
		r.recount = r.Now().Add(cleanEvery)
	}
	return n, r.Pool.QueryRow(ctx, countWaitingSQL, all).Scan(&n)
}

// countWaitingSQL returns how many caps came into force by it. Others count anew what sums may have missed, as after a TRUNCATE.
const countWaitingSQL = `
SELECT count(*) FROM (SELECT callq.count_waiting(queue) AND NOT counted AS new FROM callq.call_caps WHERE NOT counted OR $1) c WHERE new`

const uncountedCapsSQL = `SELECT count(*) FROM callq.call_caps WHERE NOT counted`
