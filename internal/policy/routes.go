package policy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Route is a rule between an INSERT and the queue: calls that match it are changed or discarded. callq.route puts calls through them.
type Route struct {
	Queues, Tasks, Keys, Methods, Hosts []string            `json:",omitempty"` // none: any. A key that ends in * stands for all that begin so
	Fields                              map[string][]string `json:",omitempty"` // of call_data, by path ($.a.b)
	Set                                 RouteSet            `json:",omitzero"`
	Discard                             string              `json:",omitempty"` // why
	Continue                            bool                `json:",omitempty"` // with the rules after it
}

// RouteSet is what becomes of a call. What is empty stays.
type RouteSet struct {
	Queue, Task, Key    string        `json:",omitempty"`
	KeyField, CostField []string      `json:",omitempty"` // of call_data
	Priority            *int          `json:",omitempty"`
	Cost                int64         `json:",omitempty"`
	RunIn, ExpiresIn    time.Duration `json:",omitempty"` // later than run_at; after that
}

func (p *Policy) checkRoutes() error {
	for i := range p.Routes {
		r := &p.Routes[i]
		r.Set.RunIn, r.Set.ExpiresIn = storable(r.Set.RunIn), storable(r.Set.ExpiresIn)
		known := slices.ContainsFunc(p.Queues, func(q Queue) bool { return q.Name == r.Set.Queue })
		switch {
		case r.Set.Queue != "" && !known:
			return fmt.Errorf("route %d: there is no queue %q", i+1, r.Set.Queue)
		case r.Set.Priority != nil && (*r.Set.Priority < 0 || *r.Set.Priority > 9), r.Set.Cost < 0, r.Set.RunIn < 0, r.Set.ExpiresIn < 0:
			return fmt.Errorf("route %d: a priority is 0 to 9, and nothing below 0", i+1)
		case r.Discard != "" && r.set() != "":
			return errors.New("a route that discards calls sets nothing")
		}
	}
	return nil
}

func (r Route) String() string {
	text := strings.Join(r.conditions(), ", ")
	if text == "" {
		text = "all calls"
	}
	if r.Discard != "" {
		return text + ": discarded, " + r.Discard
	}
	text += ": " + r.set()
	if r.Continue {
		text += ", and on"
	}
	return text
}

// conditions are what must hold, in words.
func (r Route) conditions() (all []string) {
	add := func(name string, values []string) {
		if len(values) > 0 {
			all = append(all, name+" "+strings.Join(values, " or "))
		}
	}
	add("queue", r.Queues)
	add("task", r.Tasks)
	add("key", r.Keys)
	add("method", r.Methods)
	add("host", r.Hosts)
	for _, path := range slices.Sorted(maps.Keys(r.Fields)) {
		add(path, r.Fields[path])
	}
	return all
}

// set is what it sets, in words.
func (r Route) set() string {
	var all []string
	add := func(name, value string) {
		if value != "" {
			all = append(all, name+" "+value)
		}
	}
	field := func(names []string) string {
		if len(names) == 0 {
			return ""
		}
		return "$." + strings.Join(names, ".")
	}
	s := r.Set
	add("queue", s.Queue)
	add("task", s.Task)
	add("key", s.Key+field(s.KeyField))
	if s.Priority != nil {
		add("priority", strconv.Itoa(*s.Priority))
	}
	if s.Cost > 0 {
		add("cost", strconv.FormatInt(s.Cost, 10))
	}
	add("cost", field(s.CostField))
	if s.RunIn > 0 {
		add("run_at in", s.RunIn.String())
	}
	if s.ExpiresIn > 0 {
		add("expires in", s.ExpiresIn.String())
	}
	return strings.Join(all, ", ")
}

// documents are the objects of which call_data contains one if the fields match: a number may be written as a text, too.
func (r Route) documents() []string {
	if len(r.Fields) == 0 {
		return nil
	}
	all := []map[string]any{{}}
	for _, path := range slices.Sorted(maps.Keys(r.Fields)) {
		var next []map[string]any
		for _, value := range r.Fields[path] {
			meant := []any{value}
			var literal any
			if err := json.Unmarshal([]byte(value), &literal); err == nil {
				switch literal.(type) {
				case float64:
					meant = append(meant, json.Number(value))
				case bool:
					meant = append(meant, literal)
				}
			}
			for _, doc := range all {
				for _, v := range meant {
					next = append(next, with(doc, strings.Split(strings.TrimPrefix(path, "$."), "."), v))
				}
			}
		}
		all = next
	}
	texts := make([]string, len(all))
	for i, doc := range all {
		text, _ := json.Marshal(doc) // none of its types can fail
		texts[i] = string(text)
	}
	return texts
}

// with is a copy of an object with a value at a path.
func with(doc map[string]any, path []string, value any) map[string]any {
	c := maps.Clone(doc)
	if len(path) == 1 {
		c[path[0]] = value
		return c
	}
	inner, _ := c[path[0]].(map[string]any)
	if inner == nil {
		inner = map[string]any{}
	}
	c[path[0]] = with(inner, path[1:], value)
	return c
}

// patterns are keys as LIKE has them.
func patterns(keys []string) (all []string) {
	escape := strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`)
	for _, key := range keys {
		prefix, open := strings.CutSuffix(key, "*")
		pattern := escape.Replace(prefix)
		if open {
			pattern += "%"
		}
		all = append(all, pattern)
	}
	return all
}

// applyRoutes writes the routes anew if one has changed. A statement that inserts sees the former ones, or these.
func (a *application) applyRoutes(ctx context.Context, routes []Route) error {
	was, err := collect(ctx, a.tx, pgx.RowTo[string], `SELECT rule FROM callq.call_routes ORDER BY number`)
	if err != nil {
		return fmt.Errorf("read routes: %w", err)
	}
	var now []string
	for _, r := range routes {
		now = append(now, r.String())
	}
	if slices.Equal(was, now) {
		return nil
	}
	var b pgx.Batch
	b.Queue(`DELETE FROM callq.call_routes`)
	b.Queue(`SELECT nextval('callq.call_ruled_seq')`)
	for i, r := range routes {
		b.Queue(putRouteSQL, pgx.StrictNamedArgs{
			"number": i + 1, "rule": now[i], "queues": r.Queues, "tasks": r.Tasks, "keys": patterns(r.Keys), "methods": r.Methods, "hosts": r.Hosts,
			"fields": r.documents(), "queue": r.Set.Queue, "task": r.Set.Task, "key": r.Set.Key, "key_field": r.Set.KeyField, "priority": r.Set.Priority,
			"cost": r.Set.Cost, "cost_field": r.Set.CostField, "run_in": r.Set.RunIn, "expires_in": r.Set.ExpiresIn,
			"discard": r.Discard, "goes_on": r.Continue,
		})
	}
	if err := a.tx.SendBatch(ctx, &b).Close(); err != nil {
		return fmt.Errorf("write routes: %w", err)
	}
	if len(now) == 0 {
		a.changed("route", "all", "removed")
	}
	for i, rule := range now {
		if i >= len(was) || was[i] != rule {
			a.changed("route", strconv.Itoa(i+1), rule)
		}
	}
	for i := len(now); i < len(was) && i > 0; i++ {
		a.changed("route", strconv.Itoa(i+1), "removed")
	}
	return nil
}

const putRouteSQL = `
INSERT INTO callq.call_routes (number, rule, queues, tasks, keys, methods, hosts, fields, set_queue, set_task, set_key, key_field,
    set_priority, set_cost, cost_field, run_in, expires_in, discard, goes_on)
VALUES (@number, @rule, nullif(@queues::text[], '{}'), nullif(@tasks::text[], '{}'), nullif(@keys::text[], '{}'), nullif(@methods::text[], '{}'),
    nullif(@hosts::text[], '{}'), nullif(@fields::text[]::jsonb[], '{}'), nullif(@queue, ''), nullif(@task, ''), nullif(@key, ''),
    nullif(@key_field::text[], '{}'), @priority, nullif(@cost::bigint, 0), nullif(@cost_field::text[], '{}'),
    nullif(@run_in::interval, '0'), nullif(@expires_in::interval, '0'), nullif(@discard, ''), @goes_on)`
