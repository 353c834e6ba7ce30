package tasks

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/callq/callq/internal/ledger"
	"github.com/jackc/pgx/v5"
)

// shutLimits closes the limits of an attempt, for every worker, when the API answered that it wants
// no more requests for a while; where a limit is per key, for that key. A limit that names hosts is closed by those
// alone, and each for no longer than its retry_after: producers choose whom calls ask. It is done before the
// outcome is recorded, and tried once: without it the call alone waits.
func (a *attempt) shutLimits(s sending) {
	later, ok := errors.AsType[*retryAfterError](s.err)
	if !ok || later.after <= 0 || len(a.Limits) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(a.w.recording, shutWithin)
	defer cancel()
	closable, err := a.w.closable(ctx, a.Limits)
	if err != nil {
		a.w.log.WarnContext(ctx, "limits not closed for Retry-After", "limits", a.Limits, "err", err)
		return
	}
	for i, name := range a.Limits {
		wait := closable[name].within(s.to, later.after)
		if wait <= 0 {
			continue
		}
		_, err := ledger.Pause(ctx, a.w.cfg.Pool, ledger.Paused{
			What: "limit", Name: name, Key: a.Keys[i], For: &wait, Extend: true, By: a.w.id,
			Reason: fmt.Sprintf("the API answered call %d: %s", a.callID, clean(s.err.Error())),
		})
		if err != nil && !errors.Is(err, ledger.ErrUnknown) {
			a.w.log.WarnContext(ctx, "limit not closed for Retry-After", "limit", name, "err", err)
		}
	}
}

const shutWithin = 5 * time.Second

// closable is whose answers close a limit, and for how long at most.
type closable struct {
	Name  string        `db:"name"`
	Hosts []string      `db:"hosts"` // none: anybody's
	Most  time.Duration `db:"retry_after"`
}

// within is for how long an answer of to closes the limit that says d; 0: not at all.
func (c closable) within(to []hostPort, d time.Duration) time.Duration {
	hosts := hostSet(c.Hosts)
	if len(hosts) > 0 && slices.ContainsFunc(to, func(h hostPort) bool { return !h.in(hosts) }) {
		return 0
	}
	return min(d, c.Most)
}

func (w *Worker) closable(ctx context.Context, limits []string) (map[string]closable, error) {
	rows, err := w.cfg.Pool.Query(ctx, closableSQL, limits)
	if err != nil {
		return nil, err
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByName[closable])
	byName := map[string]closable{}
	for _, c := range list {
		byName[c.Name] = c
	}
	return byName, err
}

const closableSQL = `SELECT name, hosts, retry_after FROM call_limits WHERE name = ANY($1) AND retry_after > '0'`
