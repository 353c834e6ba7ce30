// Package doctor finds what keeps callq from making calls, or soon will, and says how to fix it.
//
// It changes nothing. Each check has a time limit, so that doctor does not make a struggling database worse.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Level says how bad a finding is.
type Level string

// The levels. Only a problem needs action.
const (
	OK      Level = "ok"
	Note    Level = "note"
	Problem Level = "problem"
)

// Finding is one thing that a check found.
type Finding struct {
	Check string `json:"check"`
	Level Level  `json:"level"`
	What  string `json:"what"`
	Fix   string `json:"fix"` // what to do or run; empty if all is well
}

// check is a name and a question. A question in SQL returns findings as rows: level, what, fix. The text "{took}" in
// what stands for its interval column took. No findings means that all is well.
type check struct {
	name string
	sql  string
	look func(context.Context, *pgxpool.Pool) ([]Finding, error) // where SQL does not do
}

// serverChecks work without callq's schema.
func serverChecks() []check {
	return []check{
		{name: "clocks", look: clocks},
		{name: "settings", sql: settingsSQL},
		{name: "connections", sql: connectionsSQL},
		{name: "old snapshots", look: oldSnapshots},
	}
}

func schemaChecks() []check {
	return []check{
		{name: "schema", look: drift},
		{name: "owner", sql: ownerSQL},
		{name: "bloat", look: bloat},
		{name: "workers", sql: workersSQL},
		{name: "dispatchers", sql: dispatchersSQL},
		{name: "rules", look: otherPolicy},
		{name: "http settings", look: httpDiffers},
		{name: "tasks", sql: tasksSQL},
		{name: "queues", sql: queuesSQL},
		{name: "limits", look: limits},
		{name: "clock steps", sql: clockStepsSQL},
		{name: "pauses", sql: pausesSQL},
		{name: "overdue attempts", sql: overdueSQL},
		{name: "held rows", sql: heldSQL},
		{name: "calls set aside", sql: setAsideSQL},
		{name: "calls in no flow", look: orphans},
		{name: "dispatched calls", sql: withoutAttemptSQL},
		{name: "dead letters", sql: deadLettersSQL},
		{name: "late requests", sql: lateSQL},
	}
}

const checkTimeout = 5 * time.Second

// Postgres examines the database. If the schema is not this program's, it skips the checks that need it. It returns an
// error only if Postgres cannot be reached.
func Postgres(ctx context.Context, pool *pgxpool.Pool) ([]Finding, error) {
	findings, err := check{name: "schema version", look: version}.run(ctx, pool)
	if err != nil {
		return nil, err
	}
	checks := serverChecks()
	if findings[0].Level == OK {
		checks = append(checks, schemaChecks()...)
	}
	for _, c := range checks {
		found, err := c.run(ctx, pool)
		if err != nil {
			return findings, err
		}
		findings = append(findings, found...)
	}
	return findings, nil
}

// run makes an error of Postgres a finding, unless it means that Postgres cannot be reached.
func (c check) run(ctx context.Context, pool *pgxpool.Pool) ([]Finding, error) {
	bounded, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	look := c.look
	if look == nil {
		look = func(ctx context.Context, pool *pgxpool.Pool) ([]Finding, error) { return askSQL(ctx, pool, c.sql) }
	}
	found, err := look(bounded, pool)
	pg, refused := errors.AsType[*pgconn.PgError](err)
	switch {
	case refused && pg.Code == "57014", err != nil && ctx.Err() == nil && bounded.Err() != nil: // took too long
		found = one(Note, "was not looked at: it took longer than "+checkTimeout.String(), "ask again when there is less to do")
	case refused && pg.Code == "42501":
		found = one(Problem, "was not looked at: "+pg.Message, "run doctor as the tables' owner, or GRANT pg_monitor to its role")
	case refused && pg.Code[:2] != "57" && pg.Code[:2] != "08":
		found = one(Problem, "could not be looked at: "+pg.Message, "see Postgres's log")
	case err != nil:
		return nil, fmt.Errorf("look at %s: %w", c.name, err)
	case len(found) == 0:
		found = one(OK, "", "")
	}
	for i := range found {
		found[i].Check = c.name
	}
	return found, nil
}

func askSQL(ctx context.Context, pool *pgxpool.Pool, sql string) ([]Finding, error) {
	rows, err := collect[struct {
		Finding
		Took *time.Duration
	}](ctx, pool, sql)
	if err != nil {
		return nil, err
	}
	var found []Finding
	for _, r := range rows {
		if r.Took != nil {
			r.What = strings.ReplaceAll(r.What, "{took}", tidy(*r.Took).String())
		}
		found = append(found, r.Finding)
	}
	return found, nil
}

func one(level Level, what, fix string) []Finding {
	return []Finding{{Level: level, What: what, Fix: fix}}
}

// collect runs a query and returns its rows. A field without a column keeps its zero value.
func collect[T any](ctx context.Context, pool *pgxpool.Pool, sql string, args ...any) ([]T, error) {
	rows, err := pool.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByNameLax[T])
}
