package ledger

import (
	"context"
	"maps"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Connect returns a pool of the caller's own, made from another's configuration: its sessions have [Settings],
// and it has at least so many connections. Without the settings plans are made anew at each call, or for tables as
// they were when they were empty, and calls take ten times as long. A pool that has all of it is returned as it
// is. A pooler in transaction mode lets no settings through but the encoding: there the role has to bring them.
//
// end closes what was made.
func Connect(ctx context.Context, pool *pgxpool.Pool, atLeast int32) (own *pgxpool.Pool, end func(), err error) {
	config := pool.Config() // a copy
	params, wanted := config.ConnConfig.RuntimeParams, Settings()
	if params["application_name"] != "" {
		delete(wanted, "application_name")
	}
	if config.ConnConfig.DefaultQueryExecMode != pgx.QueryExecModeCacheStatement {
		wanted = map[string]string{"client_encoding": wanted["client_encoding"]}
	}
	if hasAll(params, wanted) && config.MaxConns >= atLeast {
		return pool, func() {}, nil
	}
	maps.Copy(params, wanted)
	config.MaxConns = max(config.MaxConns, atLeast)
	if own, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return nil, nil, err
	}
	return own, func() { closeWithin(own, 2*time.Second) }, nil
}

func hasAll(params, wanted map[string]string) bool {
	for name, value := range wanted {
		if params[name] != value {
			return false
		}
	}
	return true
}

// closeWithin waits for connections that are in use no longer than so: a Postgres that is silent may hold them.
func closeWithin(pool *pgxpool.Pool, most time.Duration) {
	closed := make(chan struct{})
	go func() { pool.Close(); close(closed) }()
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-closed:
	case <-timer.C:
	}
}
