package ledger

import (
	"context"
	"maps"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Settings are what callq's own connections set.
//
// Statements find rows by id, whatever the tables held when the plan was made. So plans are generic, and may only
// use nested loops over index scans. Three forms in the statements help, and mean the same everywhere:
//
//   - q.id BETWEEN x.id AND x.id joins a table that grows. With q.id = x.id Postgres may scan the whole index in order: on a
//     table that was empty when it was analyzed, that seems to cost as little.
//   - q.id = ANY (ARRAY[x.id]) does the same where the index has more columns; it costs a little more.
//   - OFFSET 0 keeps a subquery apart from the statement around it. The subquery is then planned by its own conditions, and
//     runs once for each outer row.
//
// Times add up alike in every zone. Postgres ends a transaction whose process is frozen, for it holds locks. What is committed
// is durable, whatever the server's default: a crash must not forget a start.
func Settings() map[string]string {
	return map[string]string{
		"timezone":          "UTC",
		"client_encoding":   "UTF8", // whatever the database's is
		"plan_cache_mode":   "force_generic_plan",
		"enable_seqscan":    "off",
		"enable_bitmapscan": "off",
		"enable_hashjoin":   "off",
		"enable_mergejoin":  "off",
		"jit":               "off",
		"application_name":  "callq",

		"synchronous_commit":                  "on",
		"idle_in_transaction_session_timeout": "5s",
	}
}

// Connect returns a pool made from another's configuration, whose sessions have [Settings], without which calls take ten times
// as long, and which has at least so many connections; or the pool, if it has all of it. A pooler in transaction mode passes
// no settings on but the encoding: there the role must have them. end closes a pool that Connect made.
func Connect(ctx context.Context, pool *pgxpool.Pool, atLeast int32) (own *pgxpool.Pool, end func(), err error) {
	config := pool.Config() // a copy
	params, wanted := config.ConnConfig.RuntimeParams, Settings()
	if params["application_name"] != "" {
		delete(wanted, "application_name")
	}
	if config.ConnConfig.DefaultQueryExecMode != pgx.QueryExecModeCacheStatement {
		wanted = map[string]string{"client_encoding": wanted["client_encoding"]}
	}
	maps.DeleteFunc(wanted, func(name, value string) bool { return params[name] == value })
	if len(wanted) == 0 && config.MaxConns >= atLeast {
		return pool, func() {}, nil
	}
	maps.Copy(params, wanted)
	config.MaxConns = max(config.MaxConns, atLeast)
	if own, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return nil, nil, err
	}
	return own, func() {
		closed := make(chan struct{})
		go func() { own.Close(); close(closed) }()
		select {
		case <-closed:
		case <-time.After(2 * time.Second): // a silent Postgres may hold connections
		}
	}, nil
}
