package verify

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/callq/callq/internal/limit"
	"github.com/jackc/pgx/v5"
)

// restsOn lists what the proof assumes, because no table can contradict it.
func (v *verifier) restsOn(ctx context.Context) error {
	var purged, epoch *time.Time
	if err := v.tx.QueryRow(ctx, metaSQL).Scan(&purged, &epoch); err != nil {
		return fmt.Errorf("call_meta: %w", err)
	}
	switch {
	case v.since != nil:
		v.report.assume("what was before %s was as it should be: only what came since was looked at", stamp(*v.since))
	case purged == nil:
		v.report.assume("the ledger holds every attempt: retention has removed none that was sent")
	default:
		v.report.assume("the ledger holds every attempt that arrived after %s: retention has removed attempts of calls up to then",
			stamp(*purged))
	}
	if epoch != nil {
		v.report.assume("Postgres failed over, or was restored, by %s: what it had lost of before is in no table", stamp(*epoch))
	}
	gains, losses := stepsSince(v.since, v.gains), stepsSince(v.since, v.losses)
	if len(gains)+len(losses) == 0 {
		v.report.assume("Postgres's clock was not set: no dispatcher saw it gain or lose anything")
	}
	v.report.assumeAll("Postgres's clock gained what dispatchers saw, by which windows are longer, and no more", gains)
	v.report.assumeAll("what was claimed or started at times that Postgres's clock showed twice, for it was set back, "+
		"was held to no window, nor to what its queue had", losses)
	operators, err := collect(ctx, v.tx, pgx.RowTo[string], openedSQL, v.since)
	if err != nil {
		return fmt.Errorf("the audit: %w", err)
	}
	v.report.assumeAll("who opened limits by hand knew that what was in no table could not exceed them", operators)
	var slacks []string
	for _, name := range sortedKeys(v.versions) {
		h := v.versions[name]
		if r := h[len(h)-1]; !r.Removed {
			slacks = append(slacks, fmt.Sprintf("%s %s", r.Slack, name))
		}
	}
	v.report.assumeAll("once TCP sends a request it arrives within slack, or never", slacks)
	v.report.assume("nobody with the rights of the tables' owner rewrote the ledger, the calls, the versions and the audit alike")
	return nil
}

const metaSQL = `
SELECT (SELECT at FROM call_meta WHERE name = 'ledger'), (SELECT max(at) FROM call_meta WHERE name LIKE 'epoch %')`

// openedSQL returns the limits that an operator opened, and so took it on himself that no usage is missing.
const openedSQL = `
SELECT format('%s, by %s at %s: %s', name, by, to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SSZ'), change) FROM call_audit
WHERE what = 'limit' AND starts_with(change, 'opened: ') AND ($1::timestamptz IS NULL OR at >= $1)
ORDER BY id`

func (r *Report) assume(format string, args ...any) {
	r.RestsOn = append(r.RestsOn, fmt.Sprintf(format, args...))
}

// assumeAll adds an assumption with the last entries of its list. It adds nothing for an empty list.
func (r *Report) assumeAll(what string, list []string) {
	const most = 5
	if len(list) == 0 {
		return
	}
	more := ""
	if n := len(list) - most; n > 0 {
		more, list = fmt.Sprintf("%d more; ", n), list[n:]
	}
	r.assume("%s: %s%s", what, more, strings.Join(list, "; "))
}

// stepsSince are those that the clock was set by since then; nil: all.
func stepsSince(since *time.Time, all []limit.Gain) (list []string) {
	for _, s := range all {
		if since == nil || s.At.After(*since) {
			list = append(list, fmt.Sprintf("%s at %s", s.By, stamp(s.At)))
		}
	}
	return list
}
