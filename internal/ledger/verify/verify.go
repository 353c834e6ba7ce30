// Package verify recomputes callq's rules from the ledger and the open attempts, and names every row that breaks one.
//
// It computes for each version of each limit the most units in any window. It compares every charge, counter, status and
// setting with the rows that it stands for. It shares no SQL with the code it judges, and of its Go only the arithmetic of
// internal/limit. It reads one snapshot, and the ledger as often, however many versions there are. It keeps in memory only
// what still counts in the longest window, so it may run beside everything else.
//
// When Postgres's clock is set back, it shows some times twice. Attempts that started at such times have no order, so no
// window is held against them. If no dispatcher saw the step, Run may report windows that were kept.
package verify

import (
	"context"
	"fmt"
	"time"

	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/schema"
	"github.com/jackc/pgx/v5"
)

// Options select what to verify.
type Options struct {
	// Since leaves out attempts that ended before it, windows in which none started since then, and calls that
	// ended before it. Zero: verify everything.
	Since time.Time
	// Progress is told each step, how many rows of it are done, and about how many there are, 0 where that is not known. Nil:
	// nobody asks.
	Progress func(step string, done, of int64)
}

// Report is the result of Run.
type Report struct {
	Since    *time.Time  `json:"since,omitempty"` // Options.Since; nil: everything was verified
	Calls    int64       `json:"calls"`           // verified
	Attempts int64       `json:"attempts"`        // verified, in the ledger and open
	Limits   []LimitUse  `json:"limits"`          // with Options.Since, of versions under which any started
	Shares   []ShareUse  `json:"shares"`          // what shares of limits had
	Arrivals []Arrivals  `json:"arrivals"`        // what the requests' arrivals rest on
	RestsOn  []string    `json:"rests_on"`        // what the proof assumes
	Findings []Violation `json:"findings"`        // empty: every rule holds
}

// LimitUse is the most that one version of a limit had in any window.
type LimitUse struct {
	Limit   string     `json:"limit"`
	Version int64      `json:"version"`
	From    time.Time  `json:"effective_from"`
	Rate    limit.Rate `json:"rate"`
	Starts  int64      `json:"starts"`
	// Most counts an open attempt by its claimed cost, and an ended one by its reported cost, up to the
	// claimed cost: no claim can know of more. It leaves out keys with an override.
	Most int64 `json:"most"`
	// Above is the cost that handlers reported above the claimed costs. By so much windows may have held more than
	// the rate without a fault of any claim: the calls' costs were too low.
	Above int64 `json:"settled_above_cost"`
}

// Violation is a row that breaks a rule.
type Violation struct {
	Rule    string `json:"rule"`
	Limit   string `json:"limit,omitempty"`
	CallID  int64  `json:"call_id,omitempty"`
	Attempt int32  `json:"attempt,omitempty"`
	Detail  string `json:"detail"`
}

// Run verifies the database in one read-only transaction.
func Run(ctx context.Context, pool schema.DB, o Options) (report *Report, err error) {
	snapshot := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err = pgx.BeginTxFunc(ctx, pool, snapshot, func(tx pgx.Tx) (err error) {
		report, err = RunTx(ctx, tx, o)
		return err
	})
	return report, err
}

// RunTx is Run in the caller's transaction, whose own changes it sees.
func RunTx(ctx context.Context, tx pgx.Tx, o Options) (*Report, error) {
	v := newVerifier(tx, o.Since)
	if o.Progress != nil {
		v.progress = o.Progress
	}
	for _, step := range []struct {
		name string
		run  func(context.Context) error
	}{
		{"count", v.begin},
		{"limits", v.readPolicy},
		{"attempts", v.readAttempts},
		{"shares", v.readShares},
		{"usage", v.checkUsage},
		{"limits", v.checkVersions},
		{"calls", v.checkCalls},
		{"summary", v.restsOn},
	} {
		v.progress(step.name, 0, 0)
		if err := step.run(ctx); err != nil {
			return nil, fmt.Errorf("verify: %w", err)
		}
	}
	return v.report, nil
}

// verifier is one Run.
type verifier struct {
	tx         pgx.Tx
	report     *Report
	progress   func(step string, done, of int64)
	now        time.Time         // by Postgres's clock
	since      *time.Time        // nil: everything
	countsFrom *time.Time        // no window since then counts what arrived before; nil: all windows count
	counts     map[[2]string]int // findings, by rule and limit

	versions   map[string]history  // by limit: what was in force
	limits     map[string][]string // by queue, the sorted names of those that it ever had
	gains      limit.Gains         // of Postgres's clock
	losses     []limit.Gain        // it was set back
	windows    map[string]*windows // by limit
	arrivals   arrivals            // what the arrivals rest on
	unreadable bool                // some attempt's charges are
}

func newVerifier(tx pgx.Tx, since time.Time) *verifier {
	v := &verifier{
		tx: tx, report: &Report{Findings: []Violation{}, Limits: []LimitUse{}, Shares: []ShareUse{}}, counts: map[[2]string]int{},
		progress: func(string, int64, int64) {},
		versions: map[string]history{}, limits: map[string][]string{}, windows: map[string]*windows{}, arrivals: newArrivals(),
	}
	if !since.IsZero() {
		v.since, v.report.Since = &since, &since
	}
	return v
}

// begin sets the session up, counts the calls to verify, and reads the clock.
func (v *verifier) begin(ctx context.Context) error {
	if _, err := v.tx.Exec(ctx, settingsSQL); err != nil {
		return err
	}
	return v.tx.QueryRow(ctx, beginSQL, pgx.NamedArgs{"since": v.since}).Scan(&v.report.Calls, &v.now, &v.countsFrom)
}

// settingsSQL undoes the sessions' settings, which suit statements that read few rows by id. These read whole tables.
const settingsSQL = `
SELECT set_config('enable_seqscan', 'on', true), set_config('enable_bitmapscan', 'on', true), set_config('enable_hashjoin', 'on', true),
    set_config('enable_mergejoin', 'on', true), set_config('plan_cache_mode', 'force_custom_plan', true),
    set_config('work_mem', '64MB', true), set_config('jit', 'off', true), set_config('timezone', 'UTC', true)`

// A window reaches back for its length, a bucket of usage, and what the clock gained.
const beginSQL = `
SELECT (
        SELECT count(*) FROM public.call_queue
        WHERE @since::timestamptz IS NULL OR created_at >= @since OR dispatched_at >= @since OR finished_at >= @since
           OR status NOT IN ('done', 'failed', 'cancelled')
    ), now,
    CASE WHEN @since::timestamptz IS NOT NULL THEN least(@since, now) - interval '1 min'
        - coalesce((SELECT max(window_size) * 1.02 FROM callq.call_limit_versions), '0')
        - coalesce((SELECT sum(by) FROM callq.call_clock_gains WHERE by > '0' AND isfinite(at)), '0') END
FROM (SELECT clock_timestamp() AS now OFFSET 0) c`

// found adds a row that breaks a rule, unless enough rows are named for that rule and limit.
func (v *verifier) found(row Violation) {
	const enough = 20
	count := [2]string{row.Rule, row.Limit}
	if v.counts[count]++; v.counts[count] <= enough {
		v.report.Findings = append(v.report.Findings, row)
	}
}

// check finds the rows that break rules. A statement returns them with the rule; it may use @since, which is Options.Since, and
// @now.
func (v *verifier) check(ctx context.Context, statements ...string) error {
	for _, sql := range statements {
		args := pgx.NamedArgs{"since": v.since, "now": v.now}
		if err := each(ctx, v.tx, pgx.RowToStructByNameLax[Violation], v.found, sql, args); err != nil {
			return err
		}
	}
	return nil
}

// restsOn lists what the proof assumes, because no table can contradict it.
func (v *verifier) restsOn(ctx context.Context) (err error) {
	args := pgx.NamedArgs{"since": v.since, "time": "YYYY-MM-DD HH24:MI:SSZ"}
	v.report.RestsOn, err = collect(ctx, v.tx, pgx.RowTo[string], restsOnSQL, args)
	v.report.Arrivals = v.arrivals.report()
	return err
}

// restsOnSQL names the last five events of each kind. A line with nothing to name is NULL.
const restsOnSQL = `
WITH events AS (
    SELECT id, at, CASE WHEN by > '0' THEN 'gain' ELSE 'loss' END AS kind, extract(epoch FROM by)::float8 || ' s' AS what, '' AS why
    FROM callq.call_clock_gains WHERE isfinite(at)
    UNION ALL
    SELECT id, at, 'opened', name || ', by ' || by, ': opened: ' || reason
    FROM callq.call_audit WHERE what = 'limit' AND change = 'opened'
), last AS (
    SELECT kind, string_agg(what || ' at ' || to_char(at, @time) || why, '; ' ORDER BY id) AS list
    FROM (SELECT *, row_number() OVER (PARTITION BY kind ORDER BY id DESC) AS n FROM events
        WHERE @since::timestamptz IS NULL OR at >= @since) e
    WHERE n <= 5
    GROUP BY kind
), failovers AS (
    SELECT verdict, string_agg(coalesce(CASE verdict WHEN 'missing' THEN to_char(lived_at, @time) || ' to ' END, '')
        || to_char(seen_at, @time) || ' (' || why || ')', '; ' ORDER BY seen_at) AS list
    FROM (SELECT *, row_number() OVER (PARTITION BY verdict ORDER BY seen_at DESC) AS n FROM callq.call_epochs
        WHERE verdict <> 'first' AND (@since::timestamptz IS NULL OR seen_at >= @since)) e
    WHERE n <= 5
    GROUP BY verdict
)
SELECT text
FROM (VALUES
    (CASE WHEN @since IS NOT NULL THEN
        'what was before ' || to_char(@since, @time) || ' was as it should be: only what came since was looked at'
    ELSE coalesce('the ledger holds every attempt that arrived after ' || (SELECT to_char(at, @time) FROM callq.call_meta WHERE name = 'ledger')
            || ': retention has removed attempts of calls up to then',
        'the ledger holds every attempt: retention has removed none that was sent') END),
    ('Postgres failed over, and nothing was missing, unless a worker began and died in the last seconds before: '
        || (SELECT list FROM failovers WHERE verdict = 'whole')),
    ('Postgres failed over, or was restored, and what it had lost of before is in no table; calls that were made then may have been '
        || 'made again: ' || (SELECT list FROM failovers WHERE verdict = 'missing')),
    (CASE WHEN NOT EXISTS (SELECT FROM last WHERE kind IN ('gain', 'loss')) THEN
        'Postgres''s clock was not set: no dispatcher saw it gain or lose anything' END),
    ('Postgres''s clock gained what dispatchers saw, by which windows are longer, and no more: '
        || (SELECT list FROM last WHERE kind = 'gain')),
    ('what was claimed or started at times that Postgres''s clock showed twice, for it was set back, '
        || 'was held to no window, nor to what its queue had: ' || (SELECT list FROM last WHERE kind = 'loss')),
    ('who opened limits by hand knew that what was in no table could not exceed them: '
        || (SELECT list FROM last WHERE kind = 'opened')),
    ('APIs read requests in their order, to within slack: ' || (
        SELECT string_agg(extract(epoch FROM slack)::float8 || ' s ' || name, '; ' ORDER BY name)
        FROM callq.call_limits WHERE queues <> '{}' AND proof = 'later')),
    ('somebody knew that APIs read what their machines had acknowledged within slack: ' || (
        SELECT string_agg(extract(epoch FROM slack)::float8 || ' s ' || name, '; ' ORDER BY name)
        FROM callq.call_limits WHERE queues <> '{}' AND proof = 'slack')),
    ('what was not answered had arrived within arrive_within, or never: ' || (
        SELECT string_agg(extract(epoch FROM arrive_within)::float8 || ' s ' || name, '; ' ORDER BY name)
        FROM callq.call_limits WHERE queues <> '{}' AND proof <> 'slack')),
    ('nobody with the rights of the tables'' owner rewrote the ledger, the calls, the versions and the audit alike')
) AS said (text)
WHERE text IS NOT NULL`

// each calls do with each row, and keeps none.
func each[T any](ctx context.Context, tx pgx.Tx, to pgx.RowToFunc[T], do func(T), sql string, args ...any) error {
	_, err := collect(ctx, tx, func(row pgx.CollectableRow) (none struct{}, err error) {
		t, err := to(row)
		if err == nil {
			do(t)
		}
		return none, err
	}, sql, args...)
	return err
}

func collect[T any](ctx context.Context, tx pgx.Tx, to pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	rows, _ := tx.Query(ctx, sql, args...) // CollectRows returns its error
	return pgx.CollectRows(rows, to)
}
