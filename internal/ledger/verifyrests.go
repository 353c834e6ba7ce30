package ledger

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/callq/callq/internal/limit"
	"github.com/jackc/pgx/v5"
)

// restsOn says what the proof takes for true: what is in no table that it could be held against.
func (v *verifier) restsOn(ctx context.Context) error {
	if err := v.restsOnLedger(ctx); err != nil {
		return err
	}
	v.restsOnClock()
	if err := v.restsOnOperators(ctx); err != nil {
		return err
	}
	v.restsOnArrivals()
	v.says("nobody with the rights of the tables' owner rewrote the ledger, the calls, the versions and the audit alike")
	return nil
}

func (v *verifier) says(format string, args ...any) {
	v.report.RestsOn = append(v.report.RestsOn, fmt.Sprintf(format, args...))
}

func (v *verifier) restsOnLedger(ctx context.Context) error {
	var retired, epoch *time.Time
	if err := v.tx.QueryRow(ctx, marksSQL).Scan(&retired, &epoch); err != nil {
		return fmt.Errorf("the marks: %w", err)
	}
	switch {
	case v.since != nil:
		v.says("what was before %s was as it should be: only what came since was looked at", stamp(*v.since))
	case retired == nil:
		v.says("the ledger holds every attempt: retention has removed none that was sent")
	default:
		v.says("the ledger holds every attempt that arrived after %s: retention has removed attempts of calls up to then", stamp(*retired))
	}
	if epoch != nil {
		v.says("Postgres failed over, or was restored, by %s: what it had lost of before is in no table", stamp(*epoch))
	}
	return nil
}

const marksSQL = `
SELECT (SELECT at FROM call_meta WHERE name = 'ledger'), (SELECT max(at) FROM call_meta WHERE name LIKE 'epoch %')`

func (v *verifier) restsOnClock() {
	gains, losses := v.listSteps(v.gains), v.listSteps(v.losses)
	if len(gains)+len(losses) == 0 {
		v.says("Postgres's clock was not set: no dispatcher saw it gain or lose anything")
	}
	if len(gains) > 0 {
		v.says("Postgres's clock gained what dispatchers saw, by which windows are longer, and no more: %s", listed(gains))
	}
	if len(losses) > 0 {
		v.says("what was claimed or started at times that Postgres's clock showed twice, for it was set back, was held to no window, nor to what its queue had: %s", listed(losses))
	}
}

func (v *verifier) listSteps(steps []limit.Gain) []string {
	var list []string
	for _, s := range steps {
		if v.since == nil || s.At.After(*v.since) {
			list = append(list, fmt.Sprintf("%s at %s", s.By, stamp(s.At)))
		}
	}
	return list
}

// OpenedPrefix begins an operator's word, in the audit, that nothing is missing of what a limit has used.
const OpenedPrefix = "opened: "

// restsOnOperators says what somebody took on himself: the last lines of the audit of limits that are no version.
func (v *verifier) restsOnOperators(ctx context.Context) error {
	rows, err := v.tx.Query(ctx, openedSQL, v.since)
	if err != nil {
		return fmt.Errorf("the audit: %w", err)
	}
	opened, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (string, error) {
		var name, by, change string
		var at time.Time
		err := row.Scan(&name, &by, &change, &at)
		return fmt.Sprintf("%s, by %s at %s: %s", name, by, stamp(at), change), err
	})
	if err != nil {
		return fmt.Errorf("the audit: %w", err)
	}
	if len(opened) > 0 {
		v.says("who opened limits by hand knew that what was in no table could not exceed them: %s", listed(opened))
	}
	return nil
}

const openedSQL = `
SELECT name, by, change, at FROM call_audit
WHERE what = 'limit' AND starts_with(change, '` + OpenedPrefix + `') AND ($1::timestamptz IS NULL OR at >= $1)
ORDER BY id`

// restsOnArrivals says how long after it was sent a request can arrive.
func (v *verifier) restsOnArrivals() {
	var slacks []string
	for _, name := range sortedKeys(v.versions) {
		h := v.versions[name]
		if r := h[len(h)-1]; !r.Taken {
			slacks = append(slacks, fmt.Sprintf("%s %s", r.Slack, name))
		}
	}
	if len(slacks) > 0 {
		v.says("once TCP sends a request it arrives within slack, or never: %s", listed(slacks))
	}
}

// listed is the last of them, where there are many.
func listed(all []string) string {
	const most = 5
	if n := len(all) - most; n > 0 {
		return fmt.Sprintf("%d more; %s", n, strings.Join(all[n:], "; "))
	}
	return strings.Join(all, "; ")
}
