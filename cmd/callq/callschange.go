package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/admin"
)

// change is a verb that changes calls: of the ids given, or all that fit a filter.
type change struct {
	name, past string // "cancel", "cancelled"
	long       string
	// of are the statuses that a filter may name. Where it names none, it means those of usual.
	of    []callqueue.Status
	usual func() []callqueue.Status
	// asks: calls given by id are asked about too, for it cannot be undone.
	asks bool
	// apply changes calls; of are the statuses that were asked for, nil where ids were given.
	apply func(ctx context.Context, client *callqueue.Client, of []callqueue.Status, ids []int64) ([]changed, error)
}

// changed is what became of a call.
type changed struct {
	id     int64
	done   bool
	status callqueue.Status
	open   bool   // an attempt is
	word   string // for the table, where that is not yes or no
	result any    // the client's, for JSON
}

func (c changed) MarshalJSON() ([]byte, error) { return json.Marshal(c.result) }

// String is the call as an error names it.
func (c changed) String() string { return fmt.Sprintf("%d (%s)", c.id, statusText(c.status, c.open)) }

// changeMost is how many calls of a filter are looked up at once.
const changeMost = 10_000

func changeCommand(a *app, c *change) *cobra.Command {
	var f callFilter
	var all bool
	usual := joined(c.usual(), ", ")
	cmd := &cobra.Command{
		Use:   c.name + " ID... | --status|--queue|--key|--task ... | --all",
		Short: strings.ToUpper(c.name[:1]) + c.name[1:] + " calls, by id or all that fit a filter",
		Long: c.long + fmt.Sprintf(`

A filter takes calls that are %s (--status may name: %s). callq counts them and
asks first; without a terminal that needs --yes. They are %s in small transactions, newest first. Calls
inserted meanwhile are left alone.

Exit code 4 if an ID does not exist, 1 if a call could not be %s; the other IDs are done first.`,
			usual, joined(c.of, ", "), c.past, c.past),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) > 0 && (all || f.any()):
				return usagef("give ids or a filter, not both")
			case len(args) == 0 && !all && !f.any():
				return usagef("which calls? Give ids, or --status, --queue, --key or --task, or --all for all that are %s", usual)
			case len(args) > 0:
				return changeByID(cmd, a, c, args)
			}
			filter, err := f.read(c.of)
			if err != nil {
				return err
			}
			if len(filter.Statuses) == 0 {
				filter.Statuses = c.usual()
			}
			return a.connected(commandSettings(), func(ctx context.Context, db *database, _ []string) error {
				return changeByFilter(ctx, a, c, db, filter)
			})(cmd, nil)
		},
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&all, "all", false, "all calls that are "+usual)
	return cmd
}

func changeByID(cmd *cobra.Command, a *app, c *change, args []string) error {
	ids, err := callIDs(args)
	if err != nil {
		return err
	}
	if c.asks {
		if err := confirmChange(a, c.name, int64(len(ids))); err != nil {
			return err
		}
	}
	return a.query(func(ctx context.Context, db *database, _ []string) error {
		calls, failure := c.apply(ctx, db.calls, nil, ids)
		var not []string
		err := printRows(a, calls, table[changed]{"ID," + strings.ToUpper(c.past) + ",STATUS", func(c changed) []any {
			yes := cmp.Or(c.word, map[bool]string{true: "yes", false: "no"}[c.done])
			return []any{c.id, yes, statusText(c.status, c.open)}
		}})
		for _, call := range calls {
			if !call.done && call.word == "" {
				not = append(not, call.String())
			}
		}
		missing, isMissing := errors.AsType[*callqueue.NotFoundError](failure)
		switch {
		case err != nil:
			return err
		case isMissing:
			return notFound(missing.IDs)
		case failure == nil && len(not) > 0:
			return fmt.Errorf("not %s: %s", c.past, strings.Join(not, ", "))
		}
		return failure
	})(cmd, args)
}

// changeByFilter asks about as many calls as there are, and goes through them from the newest on.
func changeByFilter(ctx context.Context, a *app, c *change, db *database, f admin.Filter) error {
	var matched int64
	err := a.within(ctx, func(ctx context.Context) error {
		newest, err := admin.ListCalls(ctx, db.Pool, f, 1)
		if err != nil || len(newest) == 0 {
			return err
		}
		f.Before = newest[0].ID + 1
		matched, err = admin.CountCalls(ctx, db.Pool, f)
		return err
	})
	if err != nil {
		return err
	}
	if matched > 0 {
		if err := confirmChange(a, c.name, matched); err != nil {
			return err
		}
	}
	done, seen, err := changeAll(ctx, a, c, db, f, matched)
	if err != nil {
		fmt.Fprintf(a.stderr, "callq: %s of %s calls were %s before\n", thousands(done), thousands(matched), c.past)
		return err
	}
	if a.output != "table" {
		return a.printJSON(map[string]int64{"matched": matched, c.past: done})
	}
	fmt.Fprintf(a.stdout, "%s %s calls\n", c.past, thousands(done))
	if left := seen - done; left > 0 {
		fmt.Fprintf(a.stderr, "%s calls were not %s: they had changed meanwhile, or still run\n", thousands(left), c.past)
	}
	return nil
}

// changeAll changes the calls of a filter, and returns how many it changed and how many it saw.
func changeAll(ctx context.Context, a *app, c *change, db *database, f admin.Filter, matched int64,
) (done, seen int64, err error) {
	said := time.Now()
	for matched > 0 {
		var page []admin.Call
		if err := a.within(ctx, func(ctx context.Context) (err error) {
			page, err = admin.ListCalls(ctx, db.Pool, f, changeMost)
			return err
		}); err != nil {
			return done, seen, err
		}
		for some := range slices.Chunk(page, 500) {
			err := a.within(ctx, func(ctx context.Context) error {
				n, err := applyTo(ctx, c, db.calls, f.Statuses, some)
				done += n
				return err
			})
			if err != nil {
				return done, seen, err
			}
			seen += int64(len(some))
			if time.Since(said) > time.Second {
				fmt.Fprintf(a.stderr, "%s %s of %s calls\n", c.past, thousands(done), thousands(matched))
				said = time.Now()
			}
		}
		if len(page) < changeMost {
			break
		}
		f.Before = page[len(page)-1].ID
	}
	return done, seen, nil
}

// applyTo changes calls and says how many. Those that are gone by now do not count.
func applyTo(ctx context.Context, c *change, client *callqueue.Client, of []callqueue.Status, calls []admin.Call,
) (done int64, err error) {
	ids := make([]int64, len(calls))
	for i, call := range calls {
		ids[i] = call.ID
	}
	list, err := c.apply(ctx, client, of, ids)
	for _, call := range list {
		if call.done {
			done++
		}
	}
	if errors.Is(err, callqueue.ErrNotFound) {
		err = nil
	}
	return done, err
}

func confirmChange(a *app, verb string, calls int64) error {
	question := fmt.Sprintf("%s %s calls?", verb, thousands(calls))
	if calls == 1 {
		question = verb + " 1 call?"
	}
	if err := a.confirm(question); err != nil {
		return fmt.Errorf("%s %w", question, err)
	}
	return nil
}

// thousands writes 1204 as 1,204.
func thousands(n int64) string {
	text := strconv.FormatInt(n, 10)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}
