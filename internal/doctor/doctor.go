// Package doctor looks for what keeps callq from making calls, or soon will, and says what mends it.
//
// It changes nothing. A check that reads more than a little is bounded in time, and says so where it gave up:
// on a system in trouble it must not be the last straw.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/callq/callq/internal/handoff"
)

// Level says how bad a finding is.
type Level string

// The levels. Only problems need something done.
const (
	OK      Level = "ok"
	Note    Level = "note"
	Problem Level = "problem"
)

// Finding is what a check found.
type Finding struct {
	Check string `json:"check"`
	Level Level  `json:"level"`
	What  string `json:"what"`
	Fix   string `json:"fix"` // what to do, or run; empty where all is well
}

// check is one thing to look at. What it returns has no name yet; nothing means that all is well.
type check struct {
	name string
	look func(context.Context, *pgxpool.Pool) ([]Finding, error)
}

// lookMost bounds each check.
const lookMost = 5 * time.Second

// Postgres examines the database. Where the schema is not this program's, only what does not need it is
// looked at. The error is one of Postgres's being away.
func Postgres(ctx context.Context, pool *pgxpool.Pool) ([]Finding, error) {
	findings, usable, err := version(ctx, pool)
	if err != nil {
		return findings, err
	}
	checks := []check{
		{"clocks", clocks}, {"settings", settings}, {"connections", connections}, {"old snapshots", oldSnapshots},
	}
	if usable {
		checks = append(checks, []check{
			{"schema", drift},
			{"owner", superusers},
			{"bloat", bloat},
			{"workers", workers},
			{"dispatchers", dispatchers},
			{"rules", otherPolicy},
			{"http settings", httpDiffers},
			{"tasks", unhandled},
			{"queues", unknownQueues},
			{"limits", limits},
			{"clock steps", clockSteps},
			{"pauses", pauses},
			{"overdue attempts", overdue},
			{"held rows", heldRows},
			{"calls set aside", setAside},
			{"calls in no flow", orphans},
			{"dispatched calls", withoutAttempt},
			{"dead letters", deadLetters},
			{"late requests", lateRequests},
		}...)
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

// run bounds the check. That Postgres refused it is a finding; that it is away ends the examination.
func (c check) run(ctx context.Context, pool *pgxpool.Pool) ([]Finding, error) {
	bounded, cancel := context.WithTimeout(ctx, 2*lookMost)
	defer cancel()
	found, err := c.look(bounded, pool)
	pg, refused := errors.AsType[*pgconn.PgError](err)
	switch {
	case refused && pg.Code == "57014", err != nil && ctx.Err() == nil && bounded.Err() != nil: // canceled: took too long
		found = one(Note, "was not looked at: it took longer than "+lookMost.String(), "ask again when there is less to do")
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

// Redis examines Redis. The error is one of its being away.
func Redis(ctx context.Context, client redis.UniversalClient) ([]Finding, error) {
	info, err := client.Info(ctx, "server", "memory").Result()
	if err != nil && !redis.HasErrorPrefix(err, "ERR") { // one that stands in may not know the sections
		return nil, fmt.Errorf("ask Redis: %w", err)
	}
	found := readRedis(info)
	paused, err := handoff.Paused(ctx, client)
	if err != nil {
		return nil, err
	}
	return append(found, asynqQueues(paused)...), nil
}

// one is a single finding.
func one(level Level, what, fix string) []Finding {
	return []Finding{{Level: level, What: what, Fix: fix}}
}

// collect runs a query and gathers its rows.
func collect[T any](ctx context.Context, pool *pgxpool.Pool, sql string, args ...any) ([]T, error) {
	rows, err := pool.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByName[T])
}
