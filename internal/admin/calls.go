package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/limit"
)

// Filter selects calls. All that it names must hold; the zero value selects every call.
type Filter struct {
	Statuses    []callqueue.Status // any of these; none: any
	Queue, Task string             // empty: any
	Key         *string            // nil: any; a pointer to "": calls without a key
	Codes       []int16            // an attempt of it was answered with any of these HTTP statuses; none: any
	Error       string             // its error_message contains this; empty: any
	Shape       *string            // its error_message has this shape (ErrorGroup); nil: any
	Limit       string             // its queue is under this limit; empty: any
	Since       *time.Time         // it was inserted then or later; nil: whenever
	Before      int64              // only ids below it, if above 0: the last of a page gives the next page
}

// ParseCodes returns the HTTP statuses that a text such as "402,5xx" names.
func ParseCodes(text string) (codes []int16, err error) {
	for name := range strings.SplitSeq(text, ",") {
		first, isClass := strings.CutSuffix(name, "xx")
		n, err := strconv.ParseInt(first, 10, 16)
		switch {
		case err == nil && isClass && n >= 1 && n <= 9:
			for code := range int16(100) {
				codes = append(codes, int16(n)*100+code)
			}
		case err == nil && !isClass && n >= 100 && n <= 999:
			codes = append(codes, int16(n))
		default:
			return nil, fmt.Errorf("%q is no HTTP status: 100 to 999, or a class such as 5xx", name)
		}
	}
	return codes, nil
}

// CodesText is Codes as ParseCodes reads them.
func (f Filter) CodesText() string {
	codes, names := f.Codes, []string(nil)
	for i := 0; i < len(codes); i++ {
		if first := codes[i]; first%100 == 0 && i+99 < len(codes) && codes[i+99] == first+99 {
			names = append(names, strconv.Itoa(int(first/100))+"xx")
			i += 99
			continue
		}
		names = append(names, strconv.Itoa(int(codes[i])))
	}
	return strings.Join(names, ",")
}

// Call is what lists show of a call.
type Call struct {
	ID           int64            `json:"id"`
	Queue        string           `json:"queue"`
	Task         string           `json:"task"`
	Key          string           `json:"key"`
	Status       callqueue.Status `json:"status"`
	Running      bool             `json:"running"`
	Attempts     int              `json:"attempts"`
	FailedCount  int              `json:"failed_count"`
	ErrorMessage *string          `json:"error_message"`
	Code         *int             `json:"code"` // the HTTP status that its last attempt was answered with
	RunAt        time.Time        `json:"run_at"`
	CreatedAt    time.Time        `json:"created_at"`
	DispatchedAt *time.Time       `json:"dispatched_at"`
	FinishedAt   *time.Time       `json:"finished_at"`
}

// ListCalls returns the newest calls that fit the filter, at most limit of them, newest first. It goes through the calls by
// id until it has enough: to find what is rare among a million takes some tenths of a second.
func ListCalls(ctx context.Context, db ledger.DB, f Filter, limit int) ([]Call, error) {
	where, args := f.where()
	args["limit"] = max(limit, 0)
	newest := `SELECT c.id FROM callq.call_effective c WHERE ` + where + ` ORDER BY c.id DESC LIMIT @limit`
	return Collect[Call](ctx, db, "list calls", listSQL+` WHERE id = ANY (ARRAY(`+newest+`)) ORDER BY id DESC`, args)
}

// The years are those that JSON can write. least and greatest ignore NULL, so a CASE keeps it.
const listSQL = `
WITH years (first, last) AS (VALUES (timestamptz '0001-01-01 00:00:00Z', timestamptz '9999-12-31 23:59:59.999999Z'))
SELECT id, queue, task, key, status,
    EXISTS (SELECT FROM callq.call_open o WHERE o.call_id = c.id AND o.started_at IS NOT NULL) AS running,
    attempts, failed_count, error_message,
    (SELECT a.code FROM public.call_attempts a WHERE a.call_id = c.id AND a.attempt > 0 ORDER BY a.attempt DESC LIMIT 1) AS code,
    least(greatest(run_at, first), last) AS run_at,
    least(greatest(created_at, first), last) AS created_at,
    CASE WHEN dispatched_at IS NOT NULL THEN least(greatest(dispatched_at, first), last) END AS dispatched_at,
    CASE WHEN finished_at IS NOT NULL THEN least(greatest(finished_at, first), last) END AS finished_at
FROM callq.call_effective c, years`

// CountCalls returns how many calls fit the filter. It goes through all calls, unless the filter asks only for
// dispatched or failed ones.
func CountCalls(ctx context.Context, db ledger.DB, f Filter) (int64, error) {
	where, args := f.where()
	counted, err := Collect[struct{ Count int64 }](ctx, db, "count calls", `SELECT count(*) FROM callq.call_effective c WHERE `+where, args)
	if err != nil {
		return 0, err
	}
	return counted[0].Count, nil
}

// CountUpTo is CountCalls, but stops at most.
func CountUpTo(ctx context.Context, db ledger.DB, f Filter, most int64) (int64, error) {
	where, args := f.where()
	args["most"] = most
	counted, err := Collect[struct{ Count int64 }](ctx, db, "count calls",
		`SELECT count(*) FROM (SELECT FROM callq.call_effective c WHERE `+where+` LIMIT @most) c`, args)
	if err != nil {
		return 0, err
	}
	return counted[0].Count, nil
}

// where is a condition on the calls c, with its arguments.
func (f Filter) where() (sql string, args pgx.NamedArgs) {
	sql = "true"
	and := func(asked bool, condition string) {
		if asked {
			sql += " AND " + condition
		}
	}
	only := func(status callqueue.Status) bool { return slices.Equal(f.Statuses, []callqueue.Status{status}) }
	and(len(f.Statuses) > 0, "c.status = ANY(@statuses::text[])")
	and(only(callqueue.StatusFailed), "c.failed_at IS NOT NULL") // call_queue_failed_idx
	and(only(callqueue.StatusDispatched), "c.id IN (SELECT call_id FROM callq.call_open)")
	and(f.Queue != "", "c.queue = @queue::text")
	and(f.Task != "", "c.task = @task::text")
	and(f.Key != nil, "c.key = @key::text")
	and(f.Error != "", "strpos(c.error_message, @error::text) > 0")
	and(f.Shape != nil, shapeSQL+" = @shape::text")
	and(f.Limit != "", "c.queue IN (SELECT unnest(queues) FROM callq.call_limits WHERE name = @limit_name::text)")
	and(f.Since != nil, "c.created_at >= @since::timestamptz")
	and(f.Before > 0, "c.id < @before::bigint")
	refusals := !slices.ContainsFunc(f.Codes, func(code int16) bool { return code >= 200 && code <= 299 })
	switch {
	case len(f.Codes) > 0 && refusals: // call_attempts_refused_idx
		and(true, "c.id IN (SELECT call_id FROM public.call_attempts WHERE code = ANY(@codes::smallint[]) AND code NOT BETWEEN 200 AND 299)")
	case len(f.Codes) > 0:
		and(true, "EXISTS (SELECT FROM public.call_attempts a WHERE a.call_id = c.id AND a.code = ANY(@codes::smallint[]))")
	}
	return sql, pgx.NamedArgs{
		"statuses": f.Statuses, "queue": f.Queue, "task": f.Task, "key": f.Key, "codes": f.Codes, "before": f.Before,
		"shape": f.Shape, "error": f.Error, "limit_name": f.Limit, "since": f.Since,
	}
}

// Attempt is a row of the ledger, or an open attempt, whose outcome is empty.
type Attempt struct {
	Attempt    int             `json:"attempt" db:"attempt"`
	Outcome    string          `json:"outcome" db:"outcome"`
	ClaimedAt  time.Time       `json:"claimed_at" db:"claimed_at"`
	StartedAt  *time.Time      `json:"started_at" db:"started_at"`
	ArrivedBy  *time.Time      `json:"arrived_by" db:"arrived_by"` // nil: it was never sent, or that is not known yet
	Proof      *string         `json:"proof" db:"proof"`           // of that: nil, its own end; later, slack, assumed; unknown: none yet
	FinishedAt *time.Time      `json:"finished_at" db:"finished_at"`
	Cost       int64           `json:"cost" db:"cost"`
	Settled    *int64          `json:"settled" db:"settled"` // what the handler said that it cost
	Code       *int            `json:"code" db:"code"`       // the HTTP status that came back
	TookMS     *int            `json:"took_ms" db:"took_ms"` // how long that took, or for how long a custom handler ran
	Worker     *string         `json:"worker" db:"worker"`
	Error      *string         `json:"error" db:"error"`
	Charged    json.RawMessage `json:"charged" db:"charged"`
}

// ReadAttempts reads the attempts of a call, an open one included.
func ReadAttempts(ctx context.Context, db ledger.DB, id int64) ([]Attempt, error) {
	return Collect[Attempt](ctx, db, "get attempts", attemptsSQL, id)
}

const attemptsSQL = `
SELECT attempt, outcome, claimed_at, started_at, nullif(arrived_by, ` + limit.UnknownSQL + `) AS arrived_by,
    CASE WHEN arrived_by = ` + limit.UnknownSQL + ` THEN 'unknown' ELSE proof END AS proof, finished_at, cost, settled, code, took_ms, worker, error, charged
FROM public.call_attempts WHERE call_id = $1 AND attempt > 0
UNION ALL
SELECT attempt, '', claimed_at, started_at, NULL, NULL, NULL, cost, NULL, NULL, NULL, worker, NULL, '[]'
FROM callq.call_open WHERE call_id = $1
ORDER BY attempt`

// Arrived is ArrivedBy in words.
func (a Attempt) Arrived() string {
	if a.Proof != nil && *a.Proof == "unknown" {
		return "not known yet: its host has answered no later request"
	}
	return Text(a.ArrivedBy)
}

// Took is TookMS in words.
func (a Attempt) Took() string {
	if a.TookMS == nil {
		return ""
	}
	return (time.Duration(*a.TookMS) * time.Millisecond).String()
}

// State is the outcome; of an open attempt, whether it runs or waits.
func (a Attempt) State() string {
	switch {
	case a.Outcome != "":
		return a.Outcome
	case a.StartedAt != nil:
		return "(running)"
	}
	return "(waits for a worker)"
}
