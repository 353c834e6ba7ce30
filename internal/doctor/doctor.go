// Package doctor finds what keeps callq from making calls, or soon will, and how to fix it.
//
// It changes nothing. Each check has a time limit, so that doctor does not make a struggling database worse.
package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/callq/callq/internal/admin"
	"github.com/callq/callq/internal/schema"
)

// Levels and findings are those of package admin, which judges what processes, queues and limits do.
const (
	OK      = admin.OK
	Note    = admin.Note
	Problem = admin.Problem
)

// Finding is one thing that a check found.
type Finding = admin.Finding

// judge makes a finding: all is well, or what is not.
func judge(well bool, is, problem, fix string) []Finding {
	if well {
		return []Finding{{Level: OK, What: is}}
	}
	return []Finding{{Level: Problem, What: problem, Fix: fix}}
}

// of returns what a check found. Where that is nothing, all is well.
func of(check string, found []Finding) []Finding {
	if len(found) == 0 {
		found = []Finding{{Level: OK}}
	}
	for i := range found {
		found[i].Check = cmp.Or(found[i].Check, check)
	}
	return found
}

// check is a name and a question.
type check struct {
	name    string
	examine func(context.Context, schema.DB) ([]Finding, error)
}

// asks is a question in SQL, which returns findings as rows: level, what, fix.
func asks(sql string) func(context.Context, schema.DB) ([]Finding, error) {
	return func(ctx context.Context, pool schema.DB) ([]Finding, error) {
		return admin.Collect[Finding](ctx, pool, "ask Postgres", sql)
	}
}

const checkTimeout = 5 * time.Second

// Postgres examines the database. If the schema is not this program's, it skips the checks that need it. It returns an
// error only if Postgres cannot be reached.
func Postgres(ctx context.Context, pool schema.DB) (all []Finding, err error) {
	for _, c := range []check{
		{"clocks", clocks},
		{"settings", asks(settingsSQL)},
		{"reads", reads},
		{"old snapshots", asks(snapshotsSQL)},
		{"schema version", version}, // what follows needs it
		{"schema", drift},
		{"owner", asks(ownerSQL)},
		{"bloat", asks(deadRowsSQL)},
		{"status", status},
		{"set by hand", asks(byHandSQL)},
		{"clock steps", asks(clockStepsSQL)},
		{"failovers", asks(failoversSQL)},
		{"servers", asks(besideSQL)},
		{"overdue attempts", asks(overdueSQL)},
		{"held rows", asks(heldSQL)},
		{"calls set aside", asks(setAsideSQL)},
		{"calls in no flow", orphans},
		{"dispatched calls", asks(withoutAttemptSQL)},
		{"late requests", asks(lateSQL)},
		{"requests in doubt", asks(inDoubtSQL)},
		{"requests without proof", asks(unprovenSQL)},
		{"refusals", asks(refusedSQL)},
		{"routes", asks(routesSQL)},
		{"keys of ended calls", asks(endedKeysSQL)},
		{"costs above what was set", asks(tooDearSQL)},
		{"APIs' own limits", ownLimits},
	} {
		found, err := c.run(ctx, pool)
		if err != nil {
			return all, err
		}
		all = append(all, found...)
		if c.name == "schema version" && found[0].Level != OK {
			break
		}
	}
	return all, nil
}

// run makes an error of Postgres a finding, unless it means that Postgres cannot be reached.
func (c check) run(ctx context.Context, pool schema.DB) ([]Finding, error) {
	bounded, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	found, err := c.examine(bounded, pool)
	if err == nil {
		return of(c.name, found), nil
	}
	unknown := Finding{Level: Problem} // what was found before is not all, and may be wrong
	pg, refused := errors.AsType[*pgconn.PgError](err)
	switch fix := PoolerFix(err); {
	case fix != "":
		unknown.What, unknown.Fix = "could not be looked at: "+pg.Message, fix
	case refused && pg.Code == "57014", ctx.Err() == nil && bounded.Err() != nil:
		unknown.Level, unknown.Fix = Note, "ask again when there is less to do"
		unknown.What = fmt.Sprintf("was not looked at: it took longer than %s", checkTimeout)
	case refused && pg.Code == "42501":
		unknown.What, unknown.Fix = "was not looked at: "+pg.Message, "run doctor as the tables' owner, or GRANT pg_monitor to its role"
	case refused && pg.Code[:2] != "57" && pg.Code[:2] != "08":
		unknown.What, unknown.Fix = "could not be looked at: "+pg.Message, "see Postgres's log"
	default:
		return nil, fmt.Errorf("look at %s: %w", c.name, err)
	}
	return of(c.name, []Finding{unknown}), nil
}

// PoolerFix is what to do about an error that only a pooler causes, "" for others.
func PoolerFix(err error) string {
	pg, _ := errors.AsType[*pgconn.PgError](err)
	switch {
	case pg == nil:
	case pg.Code == "08P01" && strings.Contains(pg.Message, "statement pooling mode"):
		return "a pooler gives each statement a session of its own, and callq needs transactions: set pool_mode = transaction in pgbouncer"
	case pg.Code == "26000", pg.Code == "42P05", // a prepared statement that is not there, or is another's
		pg.Code == "08P01" && strings.Contains(pg.Message, "unsupported startup parameter"):
		return "a pooler such as pgbouncer may stand before Postgres: if so set postgres.query_mode: cache_describe " +
			"(CALLQ_POSTGRES_QUERY_MODE), and postgres.direct_url to the way past it"
	}
	return ""
}

// status judges what `callq status` shows: which processes are alive and whether they agree, which calls no worker takes,
// and which limits are shut.
func status(ctx context.Context, pool schema.DB) ([]Finding, error) {
	s, err := admin.ReadStatus(ctx, pool)
	if err != nil {
		return nil, err
	}
	return s.Problems(), nil
}

// Budgets judges whether draws on budgets are answered, once Redis was asked.
func Budgets(budgets []admin.Budget) []Finding {
	if len(budgets) == 0 {
		return nil
	}
	var found []Finding
	for _, b := range budgets {
		if b.Unknown != "" {
			found = append(found, Finding{
				Level: Problem, What: fmt.Sprintf("draws on %s fail: %s", b.Name, strings.TrimSuffix(b.Unknown, ": "+b.Fix)),
				Fix: cmp.Or(b.Fix, "see that the budgets' Redis runs: redis.budgets_url, else redis.url"),
			})
		}
	}
	return of("budgets", found)
}
