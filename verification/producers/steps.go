package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/callq/callq/verification/packages"
)

// How many tables a diff may touch: those that users see, call_queue and call_attempts. None of the schema callq.
const mostForeign = 2

// How long calls may take to end, and for how long nothing more may come after that: two ticks.
const (
	endWithin = time.Minute
	quiet     = 2500 * time.Millisecond
)

// calls of a bulk insert.
const bulkCalls = 1000

// step is a step of each program, and how it is judged.
type step struct {
	name string
	run  func(ctx context.Context, w *world, p program) (saw string, err error)
}

func steps() []step {
	return []step{
		{"create", create},
		{"bulk", bulk},
		{"transaction", transaction},
		{"duplicates", duplicates},
		{"upsert", upsert},
		{"read", read},
		{"stale", stale},
		{"diff", diff},
	}
}

func stepNames() []string {
	var names []string
	for _, s := range steps() {
		names = append(names, s.name)
	}
	return names
}

const atTheEnd = "at the end"

// try runs all steps of a producer.
func try(ctx context.Context, p producer, callq string, postgres *postgresAddress, temp string) result {
	r := result{name: p.name}
	folder, err := filepath.Abs(filepath.Join("producers", p.name))
	if err != nil {
		r.steps = append(r.steps, stepResult{name: "create", err: err})
		return r
	}
	makeCtx, cancel := context.WithTimeout(ctx, makeWithin)
	defer cancel()
	program, err := p.make(makeCtx, folder, temp)
	if errors.Is(err, packages.ErrMissing) {
		r.missing = err
		return r
	}
	if err != nil {
		r.steps = append(r.steps, stepResult{name: "create", err: fmt.Errorf("make its program: %w", err)})
		return r
	}
	w, err := newWorld(ctx, p.name, callq, postgres, temp)
	if err != nil {
		r.steps = append(r.steps, stepResult{name: "create", err: err})
		return r
	}
	defer w.close()
	if a, err := program.step(ctx, w.environ(inserter), "version"); err != nil {
		r.version = err.Error()
	} else {
		r.version = a.Version
	}
	for _, s := range steps() {
		saw, err := s.run(ctx, w, program)
		r.steps = append(r.steps, stepResult{s.name, saw, err})
	}
	r.steps = append(r.steps, stepResult{atTheEnd, "ok", end(ctx, w)})
	return r
}

// call is a call as its row and its attempts tell.
type call struct {
	ID                                            int64
	Path, Status, Queue, Task, Key                string
	UniqueKey                                     *string
	Cost, Priority, FailedCount, Attempts, Ledger int
	MaxAttempts                                   *int
}

// await waits until as many calls of a path have ended as there should be, and checks that each was made once, and that no
// other was. A path that ends in a slash stands for all that begin so.
func (w *world) await(ctx context.Context, path string, want int) ([]call, error) {
	ctx, cancel := context.WithTimeout(ctx, endWithin)
	defer cancel()
	var calls []call
	for {
		var err error
		if calls, err = w.calls(ctx, path); err != nil {
			return nil, err
		}
		waiting := slices.ContainsFunc(calls, func(c call) bool { return !slices.Contains([]string{"done", "failed", "cancelled"}, c.Status) })
		if len(calls) >= want && !waiting {
			break
		}
		select {
		case <-time.After(50 * time.Millisecond):
			continue
		case <-ctx.Done():
			return calls, fmt.Errorf("after %s there are %d calls of %s, want %d; some still wait: %t", endWithin, len(calls), path, want, waiting)
		}
	}
	if len(calls) != want {
		return calls, fmt.Errorf("there are %d calls of %s, want %d", len(calls), path, want)
	}
	for _, c := range calls {
		if c.Status != "done" || c.Attempts != 1 || c.Ledger != 1 || c.UniqueKey != nil {
			return calls, fmt.Errorf("call %d of %s is %s after %d attempts, with %d results and the unique key %s: want done, 1, 1 and none",
				c.ID, c.Path, c.Status, c.Attempts, c.Ledger, text(c.UniqueKey))
		}
		if n := w.requests(c.Path); n != 1 {
			return calls, fmt.Errorf("the API saw %d requests of call %d of %s, want 1", n, c.ID, c.Path)
		}
	}
	return calls, nil
}

const callsSQL = `SELECT id, substr(call_data->>'url', length($1) + 1) AS path, status, coalesce(queue, 'default') AS queue,
    coalesce(task, 'http') AS task, coalesce(key, '') AS key, unique_key, coalesce(cost, 1) AS cost, coalesce(priority, 5) AS priority,
    failed_count, attempts, (SELECT count(*) FROM call_attempts WHERE call_id = id) AS ledger, max_attempts
FROM call_queue
WHERE call_data->>'url' = $1 || $2 OR right($2, 1) = '/' AND starts_with(call_data->>'url', $1 || $2)
ORDER BY id`

func (w *world) calls(ctx context.Context, path string) ([]call, error) {
	rows, err := w.pool.Query(ctx, callsSQL, w.apiURL(), path)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByName[call])
}

// requests are how many the API saw of a path.
func (w *world) requests(path string) int {
	n := 0
	for _, r := range w.api.Requests() {
		if r.Path == path {
			n++
		}
	}
	return n
}

func text(s *string) string {
	if s == nil {
		return "NULL"
	}
	return fmt.Sprintf("%q", *s)
}

// create inserts one call with a queue, a key, a unique key and call_data. The rest takes callq's defaults.
func create(ctx context.Context, w *world, p program) (string, error) {
	a, err := p.step(ctx, w.environ(inserter), "create")
	if err != nil {
		return "", err
	}
	calls, err := w.await(ctx, "/create", 1)
	if err != nil {
		return "", err
	}
	c := calls[0]
	if fmt.Sprint(c.ID) != string(a.ID) {
		return "", fmt.Errorf("it printed the id %s, and the call's is %d", a.ID, c.ID)
	}
	got := []any{c.Queue, c.Key, c.Task, c.Cost, c.Priority, text(nil)}
	want := []any{"payments", "acct_42", "http", 1, 5, text(nil)}
	if !slices.Equal(got, want) || c.MaxAttempts != nil {
		return "", fmt.Errorf("queue, key, task, cost, priority are %v, want %v", got, want)
	}
	return "ok", nil
}

// bulk inserts many calls at once, in the ORM's way.
func bulk(ctx context.Context, w *world, p program) (string, error) {
	a, err := p.step(ctx, w.environ(inserter), "bulk")
	if err != nil {
		return "", err
	}
	if a.Skip != "" {
		return "-", nil
	}
	if _, err = w.await(ctx, "/bulk/", bulkCalls); err != nil {
		return "", err
	}
	if n := len(distinct(a.IDs)); len(a.IDs) > 0 && n != bulkCalls {
		return fmt.Sprintf("ok, %d ids", n), nil
	}
	return "ok", nil
}

// distinct are the ids that name a call, each once.
func distinct(ids []callID) []callID {
	ids = slices.DeleteFunc(slices.Clone(ids), func(id callID) bool { return id == "" })
	slices.Sort(ids)
	return slices.Compact(ids)
}

// transaction inserts a call in a transaction that commits, and one in a transaction that is rolled back.
func transaction(ctx context.Context, w *world, p program) (string, error) {
	if _, err := p.step(ctx, w.environ(inserter), "transaction"); err != nil {
		return "", err
	}
	if _, err := w.await(ctx, "/committed", 1); err != nil {
		return "", err
	}
	_, err := w.await(ctx, "/rolled-back", 0)
	return "ok", err
}

// duplicates inserts three calls with two unique keys, and has the ORM ignore the second, which has the first one's.
func duplicates(ctx context.Context, w *world, p program) (string, error) {
	a, err := p.step(ctx, w.environ(inserter), "duplicates")
	if err != nil {
		return "", err
	}
	calls, err := w.await(ctx, "/duplicates/", 2)
	if err != nil {
		return "", err
	}
	if calls[0].Path != "/duplicates/1" || calls[1].Path != "/duplicates/3" {
		return "", fmt.Errorf("%s and %s were inserted, want the first and the third", calls[0].Path, calls[1].Path)
	}
	want := []callID{callID(fmt.Sprint(calls[0].ID)), "", callID(fmt.Sprint(calls[1].ID))}
	if len(a.IDs) > 0 && !slices.Equal(a.IDs, want) {
		return fmt.Sprintf("ok, ids %q for %q", a.IDs, want), nil
	}
	return "ok", nil
}

// upsert asks twice for a call with one unique key, in the ORM's way by which a second object finds the first one's row.
func upsert(ctx context.Context, w *world, p program) (string, error) {
	a, err := p.step(ctx, w.environ(inserter), "upsert")
	if err != nil {
		return "", err
	}
	if a.Skip != "" {
		return "-", nil
	}
	calls, err := w.await(ctx, "/upsert/", 1)
	if err != nil {
		return "", err
	}
	first := callID(fmt.Sprint(calls[0].ID))
	if !slices.Equal(a.IDs, []callID{first, first}) {
		return fmt.Sprintf("ok, ids %q for %q twice", a.IDs, first), nil
	}
	return "ok", nil
}

// read reads how a call ended, as one who may only read.
func read(ctx context.Context, w *world, p program) (string, error) {
	calls, err := w.calls(ctx, "/create")
	if err != nil || len(calls) == 0 {
		return "", errors.Join(err, errors.New("there is no call to read"))
	}
	a, err := p.step(ctx, w.environ(reader), "read", fmt.Sprint(calls[0].ID))
	if err != nil {
		return "", err
	}
	var stored []byte
	const sql = `SELECT result FROM call_attempts WHERE call_id = $1 ORDER BY attempt DESC LIMIT 1`
	if err := w.pool.QueryRow(ctx, sql, calls[0].ID).Scan(&stored); err != nil {
		return "", err
	}
	var got, want any
	if err := errors.Join(json.Unmarshal(a.Result, &got), json.Unmarshal(stored, &want)); err != nil {
		return "", fmt.Errorf("it printed the result %s: %w", a.Result, err)
	}
	if a.Status != "done" || !reflect.DeepEqual(got, want) {
		return "", fmt.Errorf("it read %s and %s, want done and %s", a.Status, a.Result, stored)
	}
	return "ok", nil
}

// stale has the program load a call, callq make it, and the program then save what it loaded. It does so as the owner:
// a producer may change nothing.
func stale(ctx context.Context, w *world, p program) (string, error) {
	if err := w.command(ctx, "limits", "pause", held); err != nil {
		return "", err
	}
	id, err := w.enqueue(ctx, "/stale", "stale-1")
	if err != nil {
		return "", err
	}
	r, err := p.start(ctx, w.environ(owner), "stale", fmt.Sprint(id))
	if err != nil {
		return "", err
	}
	if _, err := r.read(); err != nil {
		return "", errors.Join(err, w.command(ctx, "limits", "resume", held))
	}
	if err := w.command(ctx, "limits", "resume", held); err != nil {
		return "", errors.Join(err, r.end())
	}
	if _, err := w.await(ctx, "/stale", 1); err != nil {
		return "", errors.Join(err, r.end())
	}
	if _, err := fmt.Fprintln(r.in, "go on"); err != nil {
		return "", errors.Join(err, r.end())
	}
	a, err := r.read()
	if err != nil {
		return "", err
	}
	if err := r.end(); err != nil {
		return "", err
	}
	if a.SQLState != "ok" && a.SQLState != "CQ002" {
		return "", fmt.Errorf("it was refused with %s, want ok or CQ002", a.SQLState)
	}
	// The key must be free again.
	if _, err := w.enqueue(ctx, "/stale-again", "stale-1"); err != nil {
		return "", err
	}
	_, err = w.await(ctx, "/stale-again", 1)
	_, first := w.await(ctx, "/stale", 1)
	return a.SQLState, errors.Join(err, first)
}

// enqueue inserts a call that has no duplicate.
func (w *world) enqueue(ctx context.Context, path, key string) (id int64, err error) {
	data := map[string]any{"url": w.apiURL() + path, "json": map[string]int{"order": 4711}}
	var duplicate bool
	const sql = `SELECT id, duplicate FROM enqueue_call('http', $1, queue => 'held', unique_key => $2)`
	if err := w.pool.QueryRow(ctx, sql, data, key).Scan(&id, &duplicate); err != nil {
		return 0, err
	}
	if duplicate {
		return 0, fmt.Errorf("%s was taken for a duplicate of call %d", path, id)
	}
	return id, nil
}

// diff asks the ORM which tables its diff would create, change or drop.
func diff(ctx context.Context, w *world, p program) (string, error) {
	a, err := p.step(ctx, w.environ(owner), "diff")
	if err != nil {
		return "", err
	}
	if a.Skip != "" {
		return "-", nil
	}
	if len(a.Tables) > mostForeign {
		return "", fmt.Errorf("it would touch %s", strings.Join(a.Tables, ", "))
	}
	if len(a.Tables) == 0 {
		return "ok", nil
	}
	return fmt.Sprintf("%d tables", len(a.Tables)), nil
}

// end checks, once nothing has happened for a while, that no call waits and that the API saw each once.
func end(ctx context.Context, w *world) error {
	time.Sleep(quiet)
	var waiting int
	err := w.pool.QueryRow(ctx, `SELECT count(*) FROM call_queue WHERE status NOT IN ('done', 'failed', 'cancelled')`).Scan(&waiting)
	if err != nil {
		return err
	}
	if waiting > 0 {
		return fmt.Errorf("%d calls still wait", waiting)
	}
	seen := map[string]bool{}
	for _, r := range w.api.Requests() {
		if seen[r.Path] {
			return fmt.Errorf("%s was called again", r.Path)
		}
		seen[r.Path] = true
	}
	return w.command(ctx, "verify")
}
