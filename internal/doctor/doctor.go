// Package doctor finds what keeps callq from making calls, or soon will, and says how to fix it.
//
// It changes nothing. Each check has a time limit, so that doctor does not make a struggling database worse.
package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/callq/callq/internal/admin"
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
	Check string `json:"check" db:"-"`
	Level Level  `json:"level" db:"level"`
	What  string `json:"what" db:"what"`
	Fix   string `json:"fix" db:"fix"` // what to do or run; empty if all is well
}

type findings []Finding

func (f *findings) add(level Level, fix, what string, args ...any) {
	*f = append(*f, Finding{Level: level, What: fmt.Sprintf(what, args...), Fix: fix})
}

// judge adds that all is well, or what is not.
func (f *findings) judge(well bool, is, problem, fix string) {
	if well {
		f.add(OK, "", "%s", is)
	} else {
		f.add(Problem, fix, "%s", problem)
	}
}

// of are the findings of a check. Where there are none, all is well.
func (f findings) of(check string) findings {
	if len(f) == 0 {
		f.add(OK, "", "")
	}
	for i := range f {
		f[i].Check = cmp.Or(f[i].Check, check)
	}
	return f
}

// check is a name and a question.
type check struct {
	name string
	look func(context.Context, *pgxpool.Pool) (findings, error)
}

// asks is a question in SQL, which returns findings as rows: level, what, fix.
func asks(sql string) func(context.Context, *pgxpool.Pool) (findings, error) {
	return func(ctx context.Context, pool *pgxpool.Pool) (findings, error) {
		return admin.Collect[Finding](ctx, pool, "ask Postgres", sql)
	}
}

const (
	checkTimeout = 5 * time.Second
	namedMost    = 10 // old snapshots that get a finding of their own
)

// Postgres examines the database. If the schema is not this program's, it skips the checks that need it. It returns an
// error only if Postgres cannot be reached.
func Postgres(ctx context.Context, pool *pgxpool.Pool) (all []Finding, err error) {
	for _, c := range []check{
		{"clocks", clocks},
		{"settings", asks(settingsSQL)},
		{"old snapshots", oldSnapshots},
		{"schema version", version}, // what follows needs it
		{"schema", drift},
		{"owner", asks(ownerSQL)},
		{"bloat", bloat},
		{"status", status},
		{"clock steps", asks(clockStepsSQL)},
		{"overdue attempts", asks(overdueSQL)},
		{"held rows", asks(heldSQL)},
		{"calls set aside", asks(setAsideSQL)},
		{"calls in no flow", orphans},
		{"dispatched calls", asks(withoutAttemptSQL)},
		{"late requests", asks(lateSQL)},
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
func (c check) run(ctx context.Context, pool *pgxpool.Pool) (findings, error) {
	bounded, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	found, err := c.look(bounded, pool)
	if err != nil {
		found = nil // what it found before is not all, and may be wrong
	}
	pg, refused := errors.AsType[*pgconn.PgError](err)
	switch {
	case err == nil:
		return found.of(c.name), nil
	case refused && pg.Code == "57014", ctx.Err() == nil && bounded.Err() != nil:
		found.add(Note, "ask again when there is less to do", "was not looked at: it took longer than %s", checkTimeout)
	case refused && pg.Code == "42501":
		found.add(Problem, "run doctor as the tables' owner, or GRANT pg_monitor to its role", "was not looked at: %s", pg.Message)
	case refused && pg.Code[:2] != "57" && pg.Code[:2] != "08":
		found.add(Problem, "see Postgres's log", "could not be looked at: %s", pg.Message)
	default:
		return nil, fmt.Errorf("look at %s: %w", c.name, err)
	}
	return found.of(c.name), nil
}

// status judges what `callq status` shows: which processes are alive and whether they agree, which calls nobody takes,
// which limits are shut, and what is paused.
func status(ctx context.Context, pool *pgxpool.Pool) (all findings, err error) {
	s, err := admin.ReadStatus(ctx, pool)
	if err != nil {
		return nil, err
	}
	problems := s.Problems()
	workers := slices.DeleteFunc(s.Workers, func(w admin.Worker) bool { return !w.Live })
	live := map[string]int{"workers": len(workers), "dispatchers": len(s.Dispatchers)}
	for _, name := range []string{"workers", "dispatchers", "rules", "http settings", "tasks", "queues", "limits", "pauses"} {
		var found findings
		for _, p := range problems {
			switch {
			case p.Check != name:
			case p.Note:
				found.add(Note, p.Fix, "%s", p.What)
			default:
				found.add(Problem, p.Fix, "%s", p.What)
			}
		}
		if live[name] > 0 {
			found.add(OK, "", "%d live", live[name])
		}
		all = append(all, found.of(name)...)
	}
	return all, nil
}
