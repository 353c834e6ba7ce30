// Package verify recomputes callq's rules from the ledger and the open attempts, and names every row that breaks one.
//
// It computes for each limit, and each version of it, the most units in any window. It compares every charge,
// counter, status and setting with the rows that it stands for. It shares no SQL with the code it judges, and
// of its Go only the arithmetic of internal/limit.
//
// It reads one snapshot, and the ledger as often, however many versions there are. It keeps in memory only what
// still counts in the longest window, so it may run beside everything else.
//
// When Postgres's clock is set back, it shows some times twice. Attempts that started at such times have no order, so no
// window is held against them. If no dispatcher saw the step, Run may report windows that were kept.
package verify

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/callq/callq/internal/limit"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Options select what to verify.
type Options struct {
	// Since leaves out attempts that ended before it, windows in which none started since then, and calls that
	// ended before it. Zero: verify everything.
	Since time.Time
}

// Report is the result of Run.
type Report struct {
	Since    *time.Time  `json:"since,omitempty"` // Options.Since; nil: everything was verified
	Calls    int64       `json:"calls"`           // verified
	Attempts int64       `json:"attempts"`        // verified, in the ledger and open
	Limits   []LimitUse  `json:"limits"`
	RestsOn  []string    `json:"rests_on"` // what the proof assumes
	Findings []Violation `json:"findings"` // empty: every rule holds
}

// LimitUse is the most that one version of a limit had in any window.
type LimitUse struct {
	Limit   string        `json:"limit"`
	Version int64         `json:"version"`
	From    time.Time     `json:"effective_from"`
	Rate    int64         `json:"rate"`
	Window  time.Duration `json:"window_ns"`
	Shape   limit.Shape   `json:"shape"` // {}: a sliding window
	Starts  int64         `json:"starts"`
	// Most counts an open attempt by its claimed cost, and an ended one by its reported cost, up to the
	// claimed cost: no claim can know of more. It leaves out keys with an override.
	Most int64 `json:"most"`
	// Above is the cost that handlers reported above the claimed costs. MostSettled is Most with all of it. It
	// may exceed the rate without a fault of any claim: the calls' costs were too low.
	Above       int64 `json:"settled_above_cost"`
	MostSettled int64 `json:"most_settled"`
}

// InForce is the rate of the version.
func (l LimitUse) InForce() limit.Rate {
	return limit.Rate{Units: l.Rate, Window: l.Window, Shape: l.Shape}
}

// Violation is a row that breaks a rule.
type Violation struct {
	Rule    string `json:"rule"`
	Limit   string `json:"limit,omitempty"`
	CallID  int64  `json:"call_id,omitempty"`
	Attempt int32  `json:"attempt,omitempty"`
	Detail  string `json:"detail"`
}

// maxFindings bounds the rows named for one rule, of one limit.
const maxFindings = 20

// Run verifies the database in one read-only transaction.
func Run(ctx context.Context, pool *pgxpool.Pool, o Options) (report *Report, err error) {
	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err = pgx.BeginTxFunc(ctx, pool, options, func(tx pgx.Tx) (err error) {
		report, err = RunTx(ctx, tx, o)
		return err
	})
	return report, err
}

// RunTx is Run in the caller's transaction, whose own changes it sees.
func RunTx(ctx context.Context, tx pgx.Tx, o Options) (*Report, error) {
	v := newVerifier(tx, o.Since)
	for _, step := range []struct {
		name string
		run  func(context.Context) error
	}{
		{"set up the session", v.settings},
		{"count the calls", v.count},
		{"read what was in force", v.readPolicy},
		{"read the attempts", v.readAttempts},
		{"compare the usage", v.checkUsage},
		{"check the versions", v.checkVersions},
		{"check the calls", v.checkCalls},
		{"list what it rests on", v.restsOn},
	} {
		if err := step.run(ctx); err != nil {
			return nil, fmt.Errorf("verify: %s: %w", step.name, err)
		}
	}
	return v.report, nil
}

func (v *verifier) settings(ctx context.Context) error {
	_, err := v.tx.Exec(ctx, settingsSQL)
	return err
}

// settingsSQL undoes the sessions' settings, which suit statements that read few rows by id. These read whole tables.
const settingsSQL = `
SELECT set_config('enable_seqscan', 'on', true), set_config('enable_bitmapscan', 'on', true), set_config('enable_hashjoin', 'on', true),
    set_config('enable_mergejoin', 'on', true), set_config('plan_cache_mode', 'force_custom_plan', true),
    set_config('work_mem', '64MB', true), set_config('jit', 'off', true)`

// verifier is one Run.
type verifier struct {
	tx     pgx.Tx
	report *Report
	now    time.Time         // by Postgres's clock
	since  *time.Time        // nil: everything
	counts map[[2]string]int // findings, by rule and limit

	versions   map[string]history  // by limit: what was in force
	limits     map[string][]string // by queue, the sorted names of those that it ever had
	gains      limit.Gains         // of Postgres's clock
	losses     []limit.Gain        // it was set back
	windows    map[string]*windows // by limit
	unreadable bool                // some attempt's charges are
}

func newVerifier(tx pgx.Tx, since time.Time) *verifier {
	v := &verifier{
		tx: tx, report: &Report{Findings: []Violation{}, Limits: []LimitUse{}}, counts: map[[2]string]int{},
		versions: map[string]history{}, limits: map[string][]string{}, windows: map[string]*windows{},
	}
	if !since.IsZero() {
		v.since, v.report.Since = &since, &since
	}
	return v
}

// found adds a row that breaks a rule, unless enough rows are named for that rule and limit.
func (v *verifier) found(rule string, found Violation) {
	count := [2]string{rule, found.Limit}
	if v.counts[count]++; v.counts[count] <= maxFindings {
		found.Rule = rule
		v.report.Findings = append(v.report.Findings, found)
	}
}

// check finds the rows that break rules. A statement returns them with the rule; it may use @since, which is Options.Since, and
// @now.
func (v *verifier) check(ctx context.Context, statements ...string) error {
	found := func(row pgx.CollectableRow) (none struct{}, err error) {
		f, err := pgx.RowToStructByNameLax[Violation](row)
		v.found(f.Rule, f)
		return none, err
	}
	for _, sql := range statements {
		if _, err := collect(ctx, v.tx, found, sql, pgx.NamedArgs{"since": v.since, "now": v.now}); err != nil {
			return err
		}
	}
	return nil
}

func collect[T any](ctx context.Context, tx pgx.Tx, to pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, to)
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.999999Z") }
