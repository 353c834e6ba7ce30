package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/admin"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/schema"
	"github.com/callq/callq/migrations"
)

// promised is what a command takes at most among a million calls, in ms: any list with a filter a second.
func (t told) promised() float64 {
	if strings.HasPrefix(t.Group, "calls list --") {
		return 1000
	}
	return 150
}

// forReads are the sizes of reads, where flags do not give others.
func (s *sizes) forReads(flags *flag.FlagSet) {
	if !given(flags, "n") {
		s.calls = 1_000_000
	}
	if !given(flags, "rounds") {
		s.rounds = 7
	}
}

// given says whether a flag was set.
func given(flags *flag.FlagSet, name string) (set bool) {
	flags.Visit(func(f *flag.Flag) { set = set || f.Name == name })
	return set
}

func (s *sizes) checkReads() error {
	if s.calls < 1000 || s.rounds < 1 {
		return errors.New("-n must be at least 1,000, and -rounds 1")
	}
	if len(s.layouts()) == 0 {
		return fmt.Errorf("-only is %q, and no layout is called that", s.only)
	}
	return nil
}

func (s *sizes) layouts() []layout {
	return slices.DeleteFunc(layouts(s.calls), func(l layout) bool { return s.only != "" && s.only != l.name })
}

// question is a command that only reads.
type question struct {
	group string // line of the table
	args  []string
	where string // of a list: which calls it shows
	rows  int    // it must give

	read func(context.Context) error // what a daemon does, named by args; nil: they are a command
}

// told is what a question took in a layout.
type told struct {
	Layout  string  `json:"layout"`
	Group   string  `json:"group"`
	Command string  `json:"command"`
	Rows    int     `json:"rows"`
	Median  float64 `json:"median_ms"`
	Slowest float64 `json:"slowest_ms"`
}

// reads measures the commands that only read, each as a whole process, in each layout. A list that gives more
// or fewer rows than there are fails the run.
func (b *bench) reads(ctx context.Context) (all []told, err error) {
	dir, err := os.MkdirTemp("", "callq-bench-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	callq := filepath.Join(dir, "callq")
	if err := b.buildCallq(ctx, callq); err != nil {
		return nil, err
	}
	for _, l := range b.layouts() {
		err := b.servers.withDatabase(ctx, func(url string) error {
			p := program{path: callq, dir: dir, postgres: url, redis: b.servers.redisURL()}
			list, err := b.readIn(ctx, l, p)
			all = append(all, list...)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", l.name, err)
		}
	}
	return all, nil
}

// buildCallq builds what `make build` makes, with the versions of its own go.mod. `go run -C verification/bench` and
// `go test` begin in this folder.
func (b *bench) buildCallq(ctx context.Context, to string) error {
	build := exec.CommandContext(ctx, "go", "build", "-C", "../..", "-o", to, "./cmd/callq")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	build.Stdout, build.Stderr = b.say, b.say
	if err := build.Run(); err != nil {
		return fmt.Errorf("build callq: %w", err)
	}
	return nil
}

func (b *bench) readIn(ctx context.Context, l layout, callq program) ([]told, error) {
	pool, err := openPool(ctx, callq.postgres, nil)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	begun := time.Now()
	if err := b.lay(ctx, pool, l, callq); err != nil {
		return nil, err
	}
	if err := b.servers.checkpoint(ctx); err != nil {
		return nil, err
	}
	fmt.Fprintf(b.say, "%s: filled in %.0f s\n", l.name, time.Since(begun).Seconds())
	list, err := l.questions(ctx, pool)
	if err != nil {
		return nil, err
	}
	var all []told
	for _, q := range list {
		t, err := callq.ask(ctx, q, b.rounds)
		if err != nil {
			return nil, err
		}
		t.Layout = l.name
		all = append(all, t)
	}
	return all, nil
}

// lay brings about the layout, as dispatchers leave it: its limits are in force, and calls that wait are in
// lines. There they stay, for the only worker has no slot.
func (b *bench) lay(ctx context.Context, pool *pgxpool.Pool, l layout, callq program) error {
	if _, err := migrations.Up(ctx, pool.Config().ConnConfig, schema.Names{}); err != nil {
		return err
	}
	servants, err := openPool(ctx, callq.postgres, ledger.Settings())
	if err != nil {
		return err
	}
	defer servants.Close()
	options, err := redis.ParseURL(callq.redis)
	if err != nil {
		return err
	}
	client := redis.NewClient(options)
	defer client.Close()
	d, err := dispatcher.New(dispatcher.Config{Pool: servants, Redis: client, Policy: l.rules()})
	if err != nil {
		return err
	}
	if err := d.Once(ctx); err != nil { // publishes, and opens the limits
		return err
	}
	for _, sql := range []string{fullWorkerSQL, longInForceSQL, `DELETE FROM callq.call_audit`} {
		if _, err := pool.Exec(ctx, sql); err != nil {
			return err
		}
	}
	if err := l.fill(ctx, pool, b.calls); err != nil {
		return err
	}
	if err := settle(ctx, servants, d); err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, "VACUUM ANALYZE"); err != nil {
		return err
	}
	if b.calls > verified {
		return nil
	}
	_, err = callq.run(ctx, "verify")
	return err
}

const fullWorkerSQL = `
INSERT INTO callq.call_workers (id, pool, tasks, labels, slots, started_at, heartbeat_at)
VALUES ('bench', 'all', '{http,mail,rare}', '{}', 0, now(), now() + interval '1 hour')`

// longInForceSQL has the limits be in force since before the calls of the layouts.
const longInForceSQL = `UPDATE callq.call_limit_versions SET effective_from = effective_from - interval '1 year'`

// verified is the size up to which `callq verify` is to find a layout as callq leaves it. Larger ones are made
// alike, and it takes long among a million.
const verified = 10_000

// questions are what is asked in a layout.
func (l layout) questions(ctx context.Context, pool *pgxpool.Pool) ([]question, error) {
	var oldest, newest string
	var waits, done *string
	if err := pool.QueryRow(ctx, someSQL).Scan(&oldest, &newest, &waits, &done); err != nil {
		return nil, fmt.Errorf("find calls to ask for: %w", err)
	}
	list := []question{
		{group: "status", args: []string{"status"}, rows: 1},
		{group: "queues list", args: []string{"queues", "list"}, rows: len(l.rules().Queues)},
		{group: "limits list", args: []string{"limits", "list"}, rows: len(l.rules().Limits)},
		{group: "limits forecast", args: []string{"limits", "forecast", "api"}, rows: 1},
		{group: "a scrape", args: []string{"/metrics"}, read: func(ctx context.Context) error {
			_, err := admin.ReadGauges(ctx, pool)
			return err
		}},
		{group: "calls get", args: []string{"calls", "get", oldest}, rows: 1},
		{group: "calls get", args: []string{"calls", "get", newest}, rows: 1},
	}
	for _, id := range []*string{waits, done} {
		if id != nil {
			list = append(list, question{group: "calls why", args: []string{"calls", "why", *id}, rows: 1})
		}
	}
	lists := l.lists()
	conditions := make([]string, len(lists))
	found := make([]int, len(lists))
	into := make([]any, len(lists))
	for i, q := range lists {
		conditions[i], into[i] = fmt.Sprintf("count(*) FILTER (WHERE %s)", q.where), &found[i]
	}
	if err := pool.QueryRow(ctx, "SELECT "+strings.Join(conditions, ", ")+" FROM call_queue").Scan(into...); err != nil {
		return nil, fmt.Errorf("count what lists show: %w", err)
	}
	for i := range lists {
		lists[i].rows = min(found[i], page)
	}
	return append(list, lists...), nil
}

// page is how many calls a list shows.
const page = 50

// One that waits and one that is done: any.
const someSQL = `
SELECT min(id)::text, max(id)::text,
    (SELECT id::text FROM call_queue WHERE status = 'new' LIMIT 1), (SELECT id::text FROM call_queue WHERE status = 'done' LIMIT 1)
FROM call_queue`

func (l layout) lists() []question {
	list := []question{{group: "calls list", args: []string{"calls", "list"}, where: "true"}}
	add := func(flag string, values []string, statuses ...string) {
		for _, value := range values {
			for _, status := range append([]string{""}, statuses...) {
				q := question{
					group: "calls list --" + flag, args: []string{"calls", "list", "--" + flag, value},
					where: fmt.Sprintf("%s = '%s'", flag, value),
				}
				if status != "" {
					q.args, q.where = append(q.args, "--status", status), fmt.Sprintf("%s AND status = '%s'", q.where, status)
				}
				list = append(list, q)
			}
		}
	}
	add("status", []string{"new", "dispatched", "done", "error", "failed", "cancelled"})
	add("queue", append(slices.Clone(l.queues), "none"), "new", "done", "failed", "error")
	add("key", append(slices.Clone(l.keys), "none"), "done", "new")
	add("task", []string{"rare", "none"}, "done", "new")
	return list
}

// program is the built callq and its servers.
type program struct {
	path, dir, postgres, redis string
}

// run runs a command, in a folder without a configuration, and returns what it prints.
func (p program) run(ctx context.Context, args ...string) (stdout []byte, err error) {
	cmd := exec.CommandContext(ctx, p.path, args...)
	cmd.Dir = p.dir
	cmd.Env = []string{"DATABASE_URL=" + p.postgres, "REDIS_URL=" + p.redis}
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("callq %s: %w\n%s%s", strings.Join(args, " "), err, &out, &complaint)
	}
	return out.Bytes(), nil
}

// ask asks a question once, and then as often as is counted; no more than thrice where it takes above a second.
// Each row is a line.
func (p program) ask(ctx context.Context, q question, times int) (told, error) {
	command := strings.Join(q.args, " ")
	args := append(q.args[:len(q.args):len(q.args)], "-o", "jsonl", "--timeout", "1m")
	read := q.read
	if read == nil {
		read = func(ctx context.Context) error {
			out, err := p.run(ctx, args...)
			if n := bytes.Count(out, []byte("\n")); err == nil && n != q.rows {
				err = fmt.Errorf("callq %s gave %d rows, not %d", command, n, q.rows)
			}
			return err
		}
	}
	var took []time.Duration
	for len(took) <= times && (len(took) <= 3 || took[0] < time.Second) {
		begun := time.Now()
		if err := read(ctx); err != nil {
			return told{}, err
		}
		took = append(took, time.Since(begun))
	}
	took = took[1:]
	return told{
		Group: q.group, Command: command, Rows: q.rows,
		Median: median(took), Slowest: float64(slices.Max(took)) / float64(time.Millisecond),
	}, nil
}

// writeTold writes, for each group and layout, the median of the command that took longest, and then which
// commands take longer than is promised.
func writeTold(w io.Writer, all []told) error {
	type cell struct{ group, layout string }
	most := map[cell]float64{}
	var groups, names []string
	var slow []told
	for _, t := range all {
		if !slices.Contains(groups, t.Group) {
			groups = append(groups, t.Group)
		}
		if !slices.Contains(names, t.Layout) {
			names = append(names, t.Layout)
		}
		at := cell{t.Group, t.Layout}
		most[at] = max(most[at], t.Median)
		if t.Median > t.promised() {
			slow = append(slow, t)
		}
	}
	out := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
	fmt.Fprintf(out, "|\tms\t|\t%s\t|\n|\t---\t|%s\n", strings.Join(names, "\t|\t"), strings.Repeat("\t--:\t|", len(names)))
	for _, group := range groups {
		fmt.Fprintf(out, "|\t%s\t|", group)
		for _, name := range names {
			fmt.Fprintf(out, "\t%.0f\t|", most[cell{group, name}])
		}
		fmt.Fprintln(out)
	}
	if len(slow) == 0 {
		fmt.Fprintln(out, "\nNone takes more than 150 ms; a list with a filter, than a second.")
		return out.Flush()
	}
	if err := out.Flush(); err != nil {
		return err
	}
	fmt.Fprint(out, "\n|\ttoo slow\t|\tcommand\t|\tmedian\t|\tslowest\t|\trows\t|\n|\t---\t|\t---\t|\t--:\t|\t--:\t|\t--:\t|\n")
	for _, t := range slow {
		fmt.Fprintf(out, "|\t%s\t|\t`%s`\t|\t%.0f\t|\t%.0f\t|\t%d\t|\n", t.Layout, t.Command, t.Median, t.Slowest, t.Rows)
	}
	return out.Flush()
}
