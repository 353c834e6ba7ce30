package actions

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/admin"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/schema"
	"github.com/callq/callq/internal/words"
)

// ChangeVerb is a way to change calls.
type ChangeVerb struct {
	Name, Past string             // "cancel", "cancelled"
	Allowed    []callqueue.Status // that a filter may name
	Usual      []callqueue.Status // of a filter that names none
	Makes      callqueue.Status   // a call that has it already is no failure; "": there is none
	apply      func(*callqueue.Client, context.Context, Options, []int64) ([]callqueue.ChangeResult, error)
}

// Options are those of a retry.
type Options = callqueue.RetryOptions

var (
	unfinished = []callqueue.Status{callqueue.StatusNew, callqueue.StatusError, callqueue.StatusDispatched}
	waiting    = []callqueue.Status{callqueue.StatusNew, callqueue.StatusError}
	ended      = []callqueue.Status{callqueue.StatusDone, callqueue.StatusFailed, callqueue.StatusCancelled}
)

// Verb returns the way to change calls that has this name: retry, cancel, delete or run; false: none has.
func Verb(name string) (ChangeVerb, bool) {
	switch name {
	case "retry":
		return ChangeVerb{
			Name: name, Past: "retried", Usual: []callqueue.Status{callqueue.StatusFailed},
			Allowed: []callqueue.Status{callqueue.StatusFailed, callqueue.StatusCancelled, callqueue.StatusDone},
			apply: func(c *callqueue.Client, ctx context.Context, o Options, ids []int64) ([]callqueue.ChangeResult, error) {
				return c.RetryWith(ctx, o, ids...)
			},
		}, true
	case "cancel":
		return ChangeVerb{
			Name: name, Past: "cancelled", Allowed: unfinished, Usual: unfinished, Makes: callqueue.StatusCancelled,
			apply: func(c *callqueue.Client, ctx context.Context, _ Options, ids []int64) ([]callqueue.ChangeResult, error) {
				return c.Cancel(ctx, ids...)
			},
		}, true
	case "delete":
		return ChangeVerb{
			Name: name, Past: "deleted", Allowed: slices.Concat(ended, waiting), Usual: ended,
			apply: func(c *callqueue.Client, ctx context.Context, _ Options, ids []int64) ([]callqueue.ChangeResult, error) {
				return c.Delete(ctx, ids...)
			},
		}, true
	case "run":
		return ChangeVerb{
			Name: name, Past: "made due", Allowed: waiting, Usual: waiting,
			apply: func(c *callqueue.Client, ctx context.Context, _ Options, ids []int64) ([]callqueue.ChangeResult, error) {
				return c.RunNow(ctx, ids...)
			},
		}, true
	}
	return ChangeVerb{}, false
}

// Changes changes calls. Each change is in the audit before it begins.
type Changes struct {
	Verb   ChangeVerb
	Pool   schema.DB
	Client *callqueue.Client
	Options
	Within   func(context.Context, func(context.Context) error) error // bounds each transaction; nil: nothing does
	Progress func(seen, matched int64)                                // of a filter, after each transaction: how many it has changed, or passed over; nil: nobody asks
}

const perTurn = 500

func (c *Changes) within(ctx context.Context, run func(context.Context) error) error {
	if c.Within == nil {
		return run(ctx)
	}
	return c.Within(ctx, run)
}

// Bound completes a filter: with the usual statuses if it names none, and so that it fits no call that is inserted from now
// on. It returns how many calls fit.
func (c *Changes) Bound(ctx context.Context, f *admin.Filter) (matched int64, err error) {
	switch {
	case len(f.Statuses) > 0:
		c.Done = slices.Contains(f.Statuses, callqueue.StatusDone)
	case c.Done:
		f.Statuses = append(slices.Clone(c.Verb.Usual), callqueue.StatusDone)
	default:
		f.Statuses = c.Verb.Usual
	}
	err = c.within(ctx, func(ctx context.Context) error {
		if f.Before == 0 {
			newest, err := admin.ListCalls(ctx, c.Pool, *f, 1)
			if err != nil || len(newest) == 0 {
				return err
			}
			f.Before = newest[0].ID + 1
		}
		matched, err = admin.CountCalls(ctx, c.Pool, *f)
		return err
	})
	return matched, err
}

// ByFilter changes the calls that fit a bounded filter, in small transactions, newest first. It returns how many it changed,
// with an error too.
func (c *Changes) ByFilter(ctx context.Context, f admin.Filter, matched int64, who ledger.Author) (changed int64, err error) {
	name := f.Search()
	if err := c.audit(ctx, who, name, c.Verb.Name+" of "+words.Count(matched, "call")); err != nil {
		return 0, err
	}
	seen := int64(0)
	for more := matched > 0; more && err == nil; {
		err = c.within(ctx, func(ctx context.Context) error {
			looked, some, err := c.turn(ctx, &f)
			seen, changed, more = seen+looked, changed+some, looked == perTurn
			return err
		})
		if c.Progress != nil {
			c.Progress(seen, matched)
		}
	}
	end := fmt.Sprintf("%s %s of %s", c.Verb.Past, words.Number(changed), words.Number(matched))
	if err != nil {
		err = fmt.Errorf("%w; %s %s %s before", err, words.Of(changed, matched, "call"), words.Verb(changed, "was", "were"), c.Verb.Past)
		end += ", then an error"
	}
	return changed, errors.Join(err, c.audit(context.WithoutCancel(ctx), ledger.Author{By: who.By, Reason: who.Reason}, name, end))
}

// turn changes the newest calls of a filter, and has the filter go on behind them. It returns how many they are, and how many
// of them it changed.
func (c *Changes) turn(ctx context.Context, f *admin.Filter) (seen, changed int64, err error) {
	calls, err := admin.ListCalls(ctx, c.Pool, *f, perTurn)
	if err != nil {
		return 0, 0, err
	}
	ids := make([]int64, len(calls))
	for i, call := range calls {
		ids[i], f.Before = call.ID, call.ID
	}
	results, err := c.Verb.apply(c.Client, ctx, c.Options, ids)
	if errors.Is(err, callqueue.ErrNotFound) { // those that are gone by now do not count
		err = nil
	}
	for _, r := range results {
		if r.Changed {
			changed++
		}
	}
	return int64(len(ids)), changed, err
}

// ByID changes calls, and returns what it did to each that exists, and a callqueue.NotFoundError for the others.
func (c *Changes) ByID(ctx context.Context, who ledger.Author, ids ...int64) (results []callqueue.ChangeResult, err error) {
	err = c.within(ctx, func(ctx context.Context) error {
		if err := c.audit(ctx, who, idsText(ids), c.Verb.Name); err != nil {
			return err
		}
		results, err = c.Verb.apply(c.Client, ctx, c.Options, ids)
		return err
	})
	return results, err
}

func (c *Changes) audit(ctx context.Context, who ledger.Author, name, change string) error {
	return pgx.BeginTxFunc(ctx, c.Pool, pgx.TxOptions{}, func(tx pgx.Tx) error {
		var b pgx.Batch
		ledger.Audit(&b, who, "calls", name, change)
		return ledger.Wrap("write the audit", tx.SendBatch(ctx, &b).Close())
	})
}

// idsText names calls for the audit: the first few of them.
func idsText(ids []int64) string {
	const most = 20
	var texts []string
	for _, id := range ids[:min(len(ids), most)] {
		texts = append(texts, strconv.FormatInt(id, 10))
	}
	text := strings.Join(texts, ", ")
	if len(ids) > most {
		text += fmt.Sprintf(" and %s more", words.Number(int64(len(ids)-most)))
	}
	return text
}
