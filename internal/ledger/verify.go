package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/callq/callq/internal/limit"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Report is what Verify found.
type Report struct {
	Since    *time.Time  `json:"since,omitempty"` // only what was so from then on was looked at; nil: all that there is
	Calls    int64       `json:"calls"`           // that were looked at
	Attempts int64       `json:"attempts"`        // in the ledger and open, likewise
	Limits   []LimitUse  `json:"limits"`
	RestsOn  []string    `json:"rests_on"` // what the proof takes for true
	Findings []Violation `json:"findings"` // empty: every rule holds
}

// LimitUse is the most that a limit saw in any of its windows, while one version of it was in
// force.
type LimitUse struct {
	Limit   string        `json:"limit"`
	Version int64         `json:"version"`
	From    time.Time     `json:"effective_from"`
	Rate    int64         `json:"rate"`
	Window  time.Duration `json:"window_ns"`
	Shape   limit.Shape   `json:"shape"` // {}: a sliding window
	Starts  int64         `json:"starts"`
	// Most counts an attempt with what it claimed while it was open, and then with what was settled, up to
	// that: no claim could know of more. Keys that have a rate of their own are not in it.
	Most int64 `json:"most"`
	// Above are the units that handlers settled above what these attempts had claimed, and MostSettled is
	// Most with all that was settled. Above the rate it is no claim's fault: the calls' costs said too little.
	Above       int64 `json:"settled_above_cost"`
	MostSettled int64 `json:"most_settled"`
}

// InForce is the rate that held.
func (l LimitUse) InForce() limit.Rate {
	return limit.Rate{Units: l.Rate, Window: l.Window, Shape: l.Shape}
}

// Violation is a row that breaks a rule.
type Violation struct {
	Rule    string `json:"rule" db:"rule"`
	Limit   string `json:"limit,omitempty" db:"limit_name"`
	CallID  int64  `json:"call_id,omitempty" db:"call_id"`
	Attempt int32  `json:"attempt,omitempty" db:"attempt"`
	Detail  string `json:"detail" db:"detail"`
}

// violationsMost is how many rows of one rule are named.
const violationsMost = 20

// Verify recomputes callq's rules from the ledger and the open rows, in one snapshot, using nothing that claims use:
// what each attempt had to be charged to, and was; for each limit and version of it the most in any window; and every
// counter, status and setting against the rows that it stands for. It reads the ledger a fixed number of times, however
// many versions there are, and keeps in memory what counts within the longest window. It may run beside everything else.
// Starts at times that Postgres's clock showed twice, for it was set back, are in no order, and so are held to no window. A step
// back that no dispatcher saw makes it find too much there.
func Verify(ctx context.Context, pool *pgxpool.Pool) (*Report, error) {
	return VerifySince(ctx, pool, time.Time{})
}

// VerifySince looks only at attempts that have ended, or windows in which they started, since then, and at calls that
// were made or moved on since, or have not ended. Zero: at all.
func VerifySince(ctx context.Context, pool *pgxpool.Pool, since time.Time) (*Report, error) {
	v := newVerifier(since)
	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err := pgx.BeginTxFunc(ctx, pool, options, func(tx pgx.Tx) error {
		v.tx = tx
		if _, err := tx.Exec(ctx, verifySettingsSQL); err != nil {
			return err
		}
		for _, step := range []struct {
			name string
			run  func(context.Context) error
		}{
			{"count the calls", v.count},
			{"read what was in force", v.readRules},
			{"go through the ledger", v.goThrough},
			{"compare the usage", v.compareUsage},
			{"check the versions", v.checkVersions},
			{"check the calls", v.checkRules},
			{"say what it rests on", v.restsOn},
		} {
			if err := step.run(ctx); err != nil {
				return fmt.Errorf("%s: %w", step.name, err)
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("verify: %w", err)
	}
	return v.report, nil
}

// Whole tables are read here: the settings of the hot path would not help.
const verifySettingsSQL = `
SELECT set_config('enable_seqscan', 'on', true), set_config('enable_bitmapscan', 'on', true), set_config('enable_hashjoin', 'on', true),
    set_config('enable_mergejoin', 'on', true), set_config('plan_cache_mode', 'force_custom_plan', true),
    set_config('work_mem', '64MB', true), set_config('jit', 'off', true)`

// verifier is one run of Verify.
type verifier struct {
	tx     pgx.Tx
	report *Report
	now    time.Time  // by Postgres's clock
	since  *time.Time // nil: all
	counts map[string]int

	versions map[string]history // of each limit
	gains    limit.Gains
	losses   []limit.Gain // when the clock was set back
	queues   map[string]*queueHistory
	windows  map[string]*windows
	usage    map[string]*usage
	counted  map[string][]*usage // by queue
}

func newVerifier(since time.Time) *verifier {
	v := &verifier{
		report: &Report{Findings: []Violation{}, Limits: []LimitUse{}}, counts: map[string]int{},
		versions: map[string]history{}, queues: map[string]*queueHistory{}, windows: map[string]*windows{},
		usage: map[string]*usage{}, counted: map[string][]*usage{},
	}
	if !since.IsZero() {
		v.since, v.report.Since = &since, &since
	}
	return v
}

// found notes a row that breaks a rule, unless enough of them are known.
func (v *verifier) found(rule string, found Violation) {
	if v.counts[rule]++; v.counts[rule] <= violationsMost {
		found.Rule = rule
		v.report.Findings = append(v.report.Findings, found)
	}
}

func (v *verifier) count(ctx context.Context) error {
	return v.tx.QueryRow(ctx, countSQL, v.since).Scan(&v.report.Calls, &v.now)
}

// lookedAt is of a call q, $1 being since when.
const lookedAt = `($1::timestamptz IS NULL OR q.created_at >= $1 OR q.dispatched_at >= $1 OR q.finished_at >= $1
        OR q.status NOT IN ('done', 'failed', 'cancelled'))`

const countSQL = `SELECT count(*), clock_timestamp() FROM call_queue q WHERE ` + lookedAt

// checkRules has SQL find the rows that break the rules of calls.
func (v *verifier) checkRules(ctx context.Context) error {
	return v.check(ctx, rules(), v.since, violationsMost)
}

// check notes the rows that the rules' statements find.
func (v *verifier) check(ctx context.Context, rules []rule, args ...any) error {
	for _, rule := range rules {
		rows, err := v.tx.Query(ctx, rule.sql, args...)
		if err != nil {
			return fmt.Errorf("%q: %w", rule.name, err)
		}
		found, err := pgx.CollectRows(rows, pgx.RowToStructByNameLax[Violation])
		if err != nil {
			return fmt.Errorf("%q: %w", rule.name, err)
		}
		for _, f := range found {
			v.found(rule.name, f)
		}
	}
	return nil
}
