package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	clockLooks  = 5
	clockApart  = 500 * time.Millisecond // of machines that both keep the time
	clockNobody = time.Hour
)

// clocks compares this machine's clock with Postgres's. callq goes by Postgres's alone; where both are kept by
// NTP and differ, one of them is not.
func clocks(ctx context.Context, pool *pgxpool.Pool) ([]Finding, error) {
	var ahead time.Duration
	within := clockNobody
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Release()
	for range clockLooks { // the shortest round trip says most
		var at time.Time
		asked := time.Now()
		if err := conn.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&at); err != nil {
			return nil, err
		}
		if took := time.Since(asked); took/2 < within {
			within = took / 2
			ahead = at.Sub(asked.Round(0).Add(within))
		}
	}
	return []Finding{compareClocks(ahead, within)}, nil
}

// compareClocks judges how far Postgres's clock is ahead, which is known within so much.
func compareClocks(ahead, within time.Duration) Finding {
	where := "ahead of"
	if ahead < 0 {
		where = "behind"
	}
	apart := ahead.Abs()
	what := fmt.Sprintf("Postgres's clock is %s %s this machine's, give or take %s", tidy(apart), where, tidy(within))
	f := Finding{Level: OK, What: what}
	if apart-within > clockApart {
		f.Level = Problem
		f.Fix = "have NTP (chrony) keep both; limits and run_at go by Postgres's. When that is to be set forward, " +
			"pause the limits for their longest window: callq limits pause NAME --for …"
	}
	return f
}

// tidy rounds a duration to three digits or so.
func tidy(d time.Duration) time.Duration {
	switch {
	case d > time.Minute:
		return d.Round(time.Second)
	case d > time.Second:
		return d.Round(10 * time.Millisecond)
	}
	return d.Round(10 * time.Microsecond)
}
