package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/actions"
	"github.com/callq/callq/internal/admin"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/words"
)

const callForms = "-o json prints an object for one ID and an array for several; -o jsonl\n" +
	"prints an object per line."

func callsCommand(a *app) *cobra.Command {
	const forms = callForms + " Exit code 4 if an ID does not exist; the others are shown first."
	return group("calls", "List calls, say why they wait, wait for them, retry, cancel and delete them",
		callsListCommand(a),
		callsErrorsCommand(a),
		&cobra.Command{
			Use: "get ID...", Short: "Show calls with every attempt",
			Long: "Show calls with every attempt. " + forms,
			Args: cobra.MinimumNArgs(1),
			RunE: a.query(eachCall(readShown, shown.print)),
		},
		&cobra.Command{
			Use: "why ID...", Short: "Say what calls wait for, or what became of them",
			Long: "Say everything that calls wait for, or what became of them. Limits are read without their locks, so the\n" +
				"answer may be slightly out of date. " + forms,
			Args: cobra.MinimumNArgs(1),
			RunE: a.query(eachCall(func(ctx context.Context, db *database, call *callqueue.Record) (admin.Why, error) {
				why, err := admin.Explain(ctx, db.DB, call)
				readBudgets(ctx, db.cfg, why.Needs)
				why.Short()
				if why.ForRedis() {
					why.AskedRedis(askRedis(ctx, db.cfg))
				}
				return why, err
			}, printWhy)),
		},
		callsWaitCommand(a), callsRetryCommand(a), callsCancelCommand(a), callsDeleteCommand(a),
		callsRunCommand(a))
}

// filterVar adds the flags that say which calls.
func filterVar(flags *pflag.FlagSet, f *admin.Filter, allowed []callqueue.Status) {
	flags.Var(&textFlag{kind: "strings", choices: texts(allowed), set: func(text string) error {
		for name := range strings.SplitSeq(text, ",") {
			if !slices.Contains(allowed, callqueue.Status(name)) {
				return fmt.Errorf("this is for calls that are %s", joined(allowed))
			}
			f.Statuses = append(f.Statuses, callqueue.Status(name))
		}
		return nil
	}}, "status", "only these: "+joined(allowed))
	textVar(flags, &f.Queue, "queue", "only of this queue")
	textVar(flags, &f.Task, "task", "only of this task")
	flags.Var(&textFlag{kind: "string", set: func(text string) error {
		f.Key = &text
		return nil
	}}, "key", "only with this key; empty: only calls without a key")
	flags.Var(&textFlag{kind: "strings", set: func(text string) (err error) {
		f.Codes, err = admin.ParseCodes(text)
		return err
	}}, "code", "only with an attempt that was answered with one of these HTTP statuses, such as 402 or 429,5xx")
}

// textVar adds a flag whose text must not be empty, as a script's unset variable is.
func textVar(flags *pflag.FlagSet, text *string, name, usage string) {
	flags.Var(&textFlag{kind: "string", preset: *text, set: func(given string) error {
		if *text = given; given == "" {
			return errors.New("it is empty; leave it out for any")
		}
		return nil
	}}, name, usage)
}

func joined(statuses []callqueue.Status) string { return strings.Join(texts(statuses), ", ") }

func texts(statuses []callqueue.Status) []string {
	texts := make([]string, len(statuses))
	for i, s := range statuses {
		texts[i] = string(s)
	}
	return texts
}

func callsListCommand(a *app) *cobra.Command {
	var filter admin.Filter
	var limit int
	cmd := &cobra.Command{
		Use: "list [SEARCH]", Short: "List calls, newest first",
		Long: "List calls, newest first. stderr says how to get the next page. A search has the same words as that of the pages:\n" +
			admin.SearchWords + ". All must hold; since is how long ago, or a time.",
		Example: "  callq calls list 'queue:payments status:failed code:5xx since:24h'",
		RunE: a.query(func(ctx context.Context, db *database, args []string) error {
			if len(args) > 0 {
				searched, err := admin.ParseSearch(strings.Join(args, " "), time.Now())
				if err != nil {
					return usagef("%w", err)
				}
				if filter, err = filter.And(searched); err != nil {
					return usagef("%w", err)
				}
			}
			if limit < 1 || limit > 10_000 {
				return usagef("--limit is %d, outside 1 to 10000", limit)
			}
			calls, err := admin.ListCalls(ctx, db.DB, filter, limit)
			if len(calls) == limit {
				fmt.Fprintf(a.stderr, "the next page: --before %d\n", calls[len(calls)-1].ID)
			}
			return table[admin.Call]{"ID,QUEUE,TASK,KEY,STATUS,ATTEMPTS,CODE,RUN AT,FINISHED AT,ERROR", func(c admin.Call) []any {
				return []any{
					c.ID, short(c.Queue), short(c.Task), short(c.Key), statusText(c.Status, c.Running),
					c.Attempts, c.Code, c.RunAt, c.FinishedAt, short(admin.Text(c.ErrorMessage)),
				}
			}}.show(a, calls, err)
		}),
	}
	filterVar(cmd.Flags(), &filter, callqueue.Statuses())
	cmd.Flags().IntVar(&limit, "limit", 50, "how many at most")
	cmd.Flags().Int64Var(&filter.Before, "before", 0, "only ids below this one: the next page")
	return cmd
}

func callsErrorsCommand(a *app) *cobra.Command {
	var filter admin.Filter
	cmd := &cobra.Command{
		Use: "errors", Short: "Group the calls that failed by queue, task, HTTP status and error",
		Long: "Group the calls that failed by queue, task, HTTP status and error, the largest group first. In errors # stands for numbers\n" +
			"and ids, … for what is quoted. It groups the newest 100,000.",
		Example: "  callq calls errors\n  callq calls list --status failed --task http --code 402",
		RunE: a.query(func(ctx context.Context, db *database, _ []string) error {
			groups, err := admin.ReadErrors(ctx, db.DB, filter, 100_000)
			return table[admin.ErrorGroup]{"QUEUE,TASK,CODE,ERROR,CALLS,LAST FAILED AT,EXAMPLE", func(g admin.ErrorGroup) []any {
				return []any{short(g.Queue), short(g.Task), g.Code, short(g.Shape), g.Calls, g.Last, g.Example}
			}}.show(a, groups, err)
		}),
	}
	cmd.Flags().StringVar(&filter.Queue, "queue", "", "only of this queue")
	cmd.Flags().StringVar(&filter.Task, "task", "", "only of this task")
	return cmd
}

func statusText(s callqueue.Status, running bool) string {
	if running {
		return string(s) + ", running"
	}
	return string(s)
}

func callIDs(args []string) ([]int64, error) {
	ids := make([]int64, len(args))
	for i, arg := range args {
		id, err := strconv.ParseInt(arg, 10, 64)
		if err != nil || id < 1 {
			return nil, usagef("%q is not the id of a call: a whole number from 1 on", arg)
		}
		ids[i] = id
	}
	return ids, nil
}

// eachCall reads and prints calls by their ids, and fails afterwards for those that do not exist.
func eachCall[T any](read func(context.Context, *database, *callqueue.Record) (T, error), print func(T, io.Writer)) action {
	return func(ctx context.Context, db *database, args []string) error {
		ids, err := callIDs(args)
		if err != nil {
			return err
		}
		var calls []T
		var missing callqueue.NotFoundError
		for _, id := range ids {
			record, err := db.calls.Get(ctx, id)
			if errors.Is(err, callqueue.ErrNotFound) {
				missing.IDs = append(missing.IDs, id)
				continue
			}
			if err != nil {
				return err
			}
			call, err := read(ctx, db, record)
			if err != nil {
				return err
			}
			calls = append(calls, call)
		}
		people := func(w io.Writer) {
			for i, c := range calls {
				if i > 0 {
					fmt.Fprintln(w)
				}
				print(c, w)
			}
		}
		err = showEach(db.app, len(ids), calls, people)
		if err == nil && len(missing.IDs) > 0 {
			err = &missing
		}
		return err
	}
}

// showEach shows those that exist of the calls asked for: in JSON, the one that was asked for alone stands alone.
func showEach[T any](a *app, asked int, calls []T, people func(io.Writer)) error {
	switch {
	case asked > 1:
		return showRows(a, calls, people)
	case len(calls) == 1:
		return a.show(calls[0], people)
	}
	return nil
}

func printWhy(e admin.Why, to io.Writer) {
	fmt.Fprintln(to, printable(fmt.Sprintf("call %d, %s: queue %s, task %s, key %s",
		e.ID, statusText(e.Status, e.Running), short(e.Queue), short(e.Task), short(dash(e.Key)))))
	for _, r := range e.Reasons {
		fmt.Fprintln(to, "  "+printable(r.Text))
	}
	if e.Position != nil {
		fmt.Fprintln(to, "  "+printable(e.Because))
	}
}

// shown is a call with its attempts.
type shown struct {
	*callqueue.Record
	Ledger []admin.Attempt `json:"ledger"`
}

func readShown(ctx context.Context, db *database, call *callqueue.Record) (shown, error) {
	ledger, err := admin.ReadAttempts(ctx, db, call.ID)
	return shown{call, ledger}, err
}

func (c shown) print(to io.Writer) {
	record := reflect.ValueOf(*c.Record)
	for _, field := range reflect.VisibleFields(record.Type()) {
		if !field.Anonymous {
			fmt.Fprintf(to, "%-14s %s\n", field.Tag.Get("json"), cell(record.FieldByIndex(field.Index).Interface()))
		}
	}
	table[admin.Attempt]{"ATTEMPT,OUTCOME,CODE,TOOK,CLAIMED AT,STARTED AT,FINISHED AT,WORKER,ERROR", func(t admin.Attempt) []any {
		return []any{t.Attempt, t.State(), t.Code, t.Took(), t.ClaimedAt, t.StartedAt, t.FinishedAt, t.Worker, short(admin.Text(t.Error))}
	}}.below(to, c.Ledger)
}

func callsCancelCommand(a *app) *cobra.Command {
	return changeCommand(a, newChange("cancel", `Cancel calls that have not ended, and print the status of each. A call that waits, or was handed over and
has not started, is never sent. One that runs may have reached the API: its attempt stays counted, and its
handler is told to stop within about two seconds.

Cancelling a cancelled call again is no failure. A call that is done or failed cannot be cancelled.`))
}

func callsRunCommand(a *app) *cobra.Command {
	return changeCommand(a, newChange("run", `Make calls due that wait for a later time: for their run_at, or for a retry. What holds up other calls that are
due holds them up too: limits, turns, pauses, hours.`))
}

func callsRetryCommand(a *app) *cobra.Command {
	c := newChange("retry", `Retry calls that failed or were cancelled: they wait again like new calls, with all of max_attempts ahead.
What they sent before stays counted, and what they send now counts too. Calls that are done are made again
only with --done or --status done.

A call cannot be retried while one of its attempts is open, for example after it was cancelled and still runs; nor
while another unfinished call has its unique key, which it takes back.

A call keeps its Idempotency-Key. An API that remembers keys answers it as it did the first time: a 402 stays a 402.
Then use --new-key, and only where the API has not carried the request out, for it would do so twice.`)
	cmd := changeCommand(a, c)
	cmd.Flags().BoolVar(&c.NewKey, "new-key", false, "with a new Idempotency-Key, for an API that answers a key as it did the first time")
	cmd.Flags().BoolVar(&c.Done, "done", false, "calls that are done too")
	return cmd
}

func callsDeleteCommand(a *app) *cobra.Command {
	c := newChange("delete", `Delete calls that have ended or wait; those that waited are never sent. A call that was handed over or runs
is not deleted: cancel it first. Deleting frees no unit of a limit: the ledger keeps what was sent.`)
	c.asks = true
	return changeCommand(a, c)
}

// change is a verb that changes calls: of the ids given, or all that fit a filter.
type change struct {
	actions.Changes
	long string
	asks bool // also about calls given by id, for it cannot be undone
	who  ledger.Author
}

func newChange(verb, long string) *change {
	c := &change{long: long, who: ledger.By(operator())}
	c.Verb, _ = actions.Verb(verb)
	return c
}

func changeCommand(a *app, c *change) *cobra.Command {
	var f admin.Filter
	var all bool
	v := c.Verb
	cmd := &cobra.Command{
		Use:   v.Name + " ID... | --status|--queue|--key|--task ... | --all",
		Short: strings.ToUpper(v.Name[:1]) + v.Name[1:] + " calls, by id or all that fit a filter",
		Long: c.long + fmt.Sprintf(`

A filter without --status takes calls that are %s. callq counts them and asks first; without a
terminal that needs --yes. They are %s in small transactions, newest first. Calls inserted meanwhile are left alone.

Exit code 4 if an ID does not exist, 1 if a call could not be %s; the other IDs are done first. The audit has who did it,
and --reason.`,
			joined(v.Usual), v.Past, v.Past),
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			filtered := all || len(f.Statuses) > 0 || f.Queue != "" || f.Task != "" || f.Key != nil || len(f.Codes) > 0
			if filtered == (len(args) > 0) {
				return usagef("which calls? Give either ids or a filter: --status, --queue, --key, --task, --code or --all")
			}
			return a.connected(commandSettings(), func(ctx context.Context, db *database, args []string) error {
				c.Pool, c.Client, c.Within = db.DB, db.calls, db.within
				if filtered {
					return c.byFilter(ctx, db, f)
				}
				return c.byID(ctx, db, args)
			})(cmd, args)
		},
	}
	filterVar(cmd.Flags(), &f, v.Allowed)
	cmd.Flags().BoolVar(&all, "all", false, "all calls that are "+joined(v.Usual))
	cmd.Flags().StringVar(&c.who.Reason, "reason", "", "why, for the audit")
	return cmd
}

func (c *change) byID(ctx context.Context, db *database, args []string) error {
	ids, err := callIDs(args)
	if err == nil && c.asks {
		err = c.confirm(ctx, db, int64(len(ids)))
	}
	if err != nil {
		return err
	}
	results, failure := c.ByID(ctx, c.who, ids...)
	err = table[callqueue.ChangeResult]{"ID," + strings.ToUpper(c.Verb.Past) + ",STATUS", func(r callqueue.ChangeResult) []any {
		status := statusText(r.Status, r.Open)
		if r.DuplicateOf != nil {
			status += fmt.Sprintf(", call %d has its unique key", *r.DuplicateOf)
		}
		return []any{r.ID, r.Changed, status}
	}}.show(db.app, results, nil)
	if err != nil || failure != nil {
		return cmp.Or(err, failure)
	}
	left := slices.DeleteFunc(results, func(r callqueue.ChangeResult) bool { return r.Changed || r.Status == c.Verb.Makes })
	if len(left) > 0 {
		return fmt.Errorf("%s not %s", callsOf(left, ids, "was", "were"), c.Verb.Past)
	}
	return nil
}

// callsOf writes how many of the calls, with a verb: 1 of 2 calls was.
func callsOf[T any](some []T, ids []int64, one, more string) string {
	n := int64(len(some))
	return words.Of(n, int64(len(ids)), "call") + " " + words.Verb(n, one, more)
}

// byFilter asks about as many calls as there are, and goes through them from the newest on.
func (c *change) byFilter(ctx context.Context, db *database, f admin.Filter) error {
	matched, err := c.Bound(ctx, &f)
	if err == nil && matched > 0 {
		err = c.confirm(ctx, db, matched)
	}
	var changed int64
	if err == nil && matched > 0 {
		err = db.live(progress{what: c.Verb.Name}, func(tell report) (err error) {
			c.Progress = func(seen, matched int64) { tell("", seen, matched) }
			changed, err = c.ByFilter(ctx, f, matched, c.who)
			return err
		})
	}
	if err != nil {
		return err
	}
	return db.show(map[string]int64{"matched": matched, strings.ReplaceAll(c.Verb.Past, " ", "_"): changed}, func(w io.Writer) {
		fmt.Fprintf(w, "%s %s\n", c.Verb.Past, words.Of(changed, matched, "call"))
	})
}

func (c *change) confirm(ctx context.Context, db *database, calls int64) error {
	return db.confirm(ctx, fmt.Sprintf("%s %s?", c.Verb.Name, words.Count(calls, "call")))
}
