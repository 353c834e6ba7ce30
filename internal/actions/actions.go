// Package actions changes queues, limits and calls for people: from the pages, from scripts by HTTP, and, where calls are
// changed, from the command line. Each change is in the audit, with who made it and why.
package actions

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/admin"
	"github.com/callq/callq/internal/ledger"
	"github.com/callq/callq/internal/limit"
	"github.com/callq/callq/internal/policy"
	"github.com/callq/callq/internal/schema"
	"github.com/callq/callq/internal/words"
)

// Request is what somebody asks for. Each action reads the fields that it needs, and refuses the others.
type Request struct {
	Queue  string     `json:"queue,omitempty"`
	Limit  string     `json:"limit,omitempty"`
	Key    *string    `json:"key,omitempty"`   // of a pause, or of calls
	Rate   string     `json:"rate,omitempty"`  // 20/s; of a concurrency 20
	For    string     `json:"for,omitempty"`   // how long a pause lasts: 10m, 2d
	Until  *time.Time `json:"until,omitempty"` // until when it does
	Reason string     `json:"reason,omitempty"`
	Token  string     `json:"token,omitempty"` // chosen by who asks; a token acts once

	// Which calls: by id, or all that a filter fits.
	IDs    []int64 `json:"ids,omitempty"`
	Status string  `json:"status,omitempty"`
	Task   string  `json:"task,omitempty"`
	Code   string  `json:"code,omitempty"`
	Error  string  `json:"error,omitempty"`
	Shape  *string `json:"shape,omitempty"` // of an error, as callq calls errors groups them
	Since  string  `json:"since,omitempty"`
	All    bool    `json:"all,omitempty"`    // of the usual statuses, where nothing else is said
	Before int64   `json:"before,omitempty"` // only ids below it
	Expect *int64  `json:"expect,omitempty"` // how many calls a filter fits; needed above MostUnasked
	Done   bool    `json:"done,omitempty"`   // retry calls that are done too
	NewKey bool    `json:"new_key,omitempty"`
}

// Result is what came of it.
type Result struct {
	Changes []string                 `json:"changes,omitempty"` // of a queue or limit, a line each; none: it was so already
	Calls   []callqueue.ChangeResult `json:"calls,omitempty"`   // by id
	Matched int64                    `json:"matched,omitempty"` // by a filter
	Changed int64                    `json:"changed"`
}

// MostUnasked is how many calls a filter may change without saying how many it expects.
const MostUnasked = 1000

// Error is a request that was refused, or had nothing to act on.
type Error struct {
	Kind Kind
	Text string
}

func (e *Error) Error() string { return e.Text }

// Kind tells why.
type Kind int

// The kinds of errors.
const (
	Bad      Kind = iota // the request makes no sense
	NotFound             // there is no such queue, limit or call
	Conflict             // it does not fit what there is
)

func bad(format string, args ...any) error { return &Error{Bad, fmt.Sprintf(format, args...)} }

func conflict(format string, args ...any) error {
	return &Error{Conflict, fmt.Sprintf(format, args...)}
}

// Actions changes what is in a database.
type Actions struct {
	Pool   schema.DB
	Client *callqueue.Client
}

// Do carries out the action of this name for somebody. A *Error says what was wrong with the request.
func (a *Actions) Do(ctx context.Context, name string, r Request, by string) (result Result, err error) {
	who := ledger.Author{By: by, Reason: strings.TrimSpace(r.Reason)}
	if r.Token != "" {
		who.Token = &r.Token
	}
	noun, verb, _ := strings.Cut(name, "/")
	if noun == "calls" {
		result, err = a.calls(ctx, verb, r, who)
	} else {
		result.Changes, err = a.rule(ctx, strings.TrimSuffix(noun, "s"), verb, r, who)
		result.Changed = int64(len(result.Changes))
	}
	return result, explained(err)
}

// explained turns errors that whoever asks can mend into an *Error.
func explained(err error) error {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	switch {
	case err == nil:
		return nil
	case ok && pg.ConstraintName == "call_audit_token_idx":
		return conflict("this was done already: its token has been used. Load the page again to see what there is now")
	case ok && strings.HasPrefix(pg.Code, "22"): // not text for Postgres: it names nothing
		return &Error{NotFound, "there is nothing of this name"}
	case errors.Is(err, ledger.ErrUnknown):
		return &Error{NotFound, err.Error()}
	case errors.Is(err, policy.ErrRate):
		return bad("%s", err)
	case errors.Is(err, policy.ErrUncounted), errors.Is(err, policy.ErrUnjudged):
		return conflict("%s", err)
	}
	return err
}

// rule changes a queue or a limit: what is "queue" or "limit".
func (a *Actions) rule(ctx context.Context, what, verb string, r Request, who ledger.Author) ([]string, error) {
	name := r.Queue
	if what == "limit" {
		name = r.Limit
	}
	_, filtered, _ := Request{Status: r.Status, Task: r.Task, Code: r.Code, Error: r.Error, Shape: r.Shape, Since: r.Since, All: r.All}.Filter()
	switch {
	case name == "":
		return nil, bad("%s is missing: the name of a %s", what, what)
	case what == "queue" && r.Limit != "", what == "limit" && r.Queue != "":
		return nil, bad("queue and limit: give the %s", what)
	case filtered || len(r.IDs) > 0 || r.Before != 0 || r.Expect != nil || r.Done || r.NewKey:
		return nil, bad("what says which calls belongs to calls/…")
	case (r.For != "" || r.Until != nil) && verb != "pause":
		return nil, bad("for and until belong to a pause")
	case r.Rate != "" && verb != "set":
		return nil, bad("rate belongs to limits/set")
	}
	key := ""
	if r.Key != nil {
		key = *r.Key
	}
	if key != "" && verb != "pause" && verb != "resume" {
		return nil, bad("key belongs to a pause")
	}
	switch verb {
	case "pause":
		return a.pause(ctx, ledger.Paused{What: what, Name: name, Key: key, Until: r.Until, Author: who}, r.For)
	case "resume":
		was, err := ledger.Resume(ctx, a.Pool, what, name, key, who)
		if err != nil || !was {
			return nil, err
		}
		return []string{Pausable(what, name, key) + ": resumed"}, nil
	case "set":
		rate, err := limit.ParseSetting(r.Rate)
		if err != nil {
			return nil, bad("rate: %s", err)
		}
		return policy.Override(ctx, a.Pool, name, rate, who)
	case "reset":
		return policy.Reset(ctx, a.Pool, name, who)
	case "open":
		if who.Reason == "" {
			return nil, bad("reason is missing: say why you know that nothing was sent which callq does not know of")
		}
		return policy.Open(ctx, a.Pool, name, who)
	}
	return nil, bad("there is no such action")
}

// pause pauses for a length, which may be empty, or until p.Until.
func (a *Actions) pause(ctx context.Context, p ledger.Paused, length string) ([]string, error) {
	switch {
	case length != "" && p.Until != nil:
		return nil, bad("for and until: give one of them")
	case length != "":
		d, err := words.ParseDuration(length)
		if err != nil || d <= 0 {
			return nil, bad("for: %q is no length of time: 10m, 1h30m, 2d", length)
		}
		p.For = &d
	case p.Until != nil && p.Until.Before(time.Now()):
		return nil, bad("until: %s has passed", p.Until.Format(time.RFC3339))
	}
	if p.Reason == "" {
		p.Reason = "by " + p.By
	}
	recalled, err := ledger.Pause(ctx, a.Pool, p)
	if err != nil {
		return nil, err
	}
	return []string{fmt.Sprintf("%s: paused, %s recalled", Pausable(p.What, p.Name, p.Key), words.Count(int64(recalled), "unstarted attempt"))}, nil
}

// Pausable names a limit or queue, or one key of it.
func Pausable(what, name, key string) string {
	if key != "" {
		return fmt.Sprintf("%s %s, key %s", what, name, key)
	}
	return what + " " + name
}

// calls changes calls.
func (a *Actions) calls(ctx context.Context, verbName string, r Request, who ledger.Author) (result Result, err error) {
	verb, ok := Verb(verbName)
	if !ok {
		return result, bad("there is no such action")
	}
	c := a.changes(verb, r)
	f, filtered, err := r.Filter()
	switch {
	case err != nil:
		return result, err
	case r.Rate != "" || r.For != "" || r.Until != nil:
		return result, bad("rate, for and until belong to queues/… and limits/…")
	case (r.Done || r.NewKey) && verbName != "retry":
		return result, bad("done and new_key belong to calls/retry")
	case filtered == (len(r.IDs) > 0):
		return result, bad("which calls? Give either ids or a filter: status, queue, key, task, code, error, limit, since or all")
	case !filtered:
		if result.Calls, err = c.ByID(ctx, who, r.IDs...); errors.Is(err, callqueue.ErrNotFound) && len(result.Calls) == 0 {
			return result, &Error{NotFound, err.Error()}
		}
		for _, call := range result.Calls {
			if call.Changed {
				result.Changed++
			}
		}
		return result, ignoreMissing(err)
	}
	if result.Matched, err = c.count(ctx, &f); err != nil {
		return result, err
	}
	switch n := result.Matched; {
	case r.Expect == nil && n > MostUnasked:
		return result, conflict("%s fit: give \"expect\": %d to %s them", words.Count(n, "call"), n, verb.Name)
	case r.Expect != nil && n > *r.Expect:
		return result, conflict("%s %s by now, and you expected %s: look again", words.Count(n, "call"), words.Verb(n, "fits", "fit"), words.Number(*r.Expect))
	}
	result.Changed, err = c.ByFilter(ctx, f, result.Matched, who)
	return result, err
}

func ignoreMissing(err error) error {
	if errors.Is(err, callqueue.ErrNotFound) {
		return nil
	}
	return err
}

func (a *Actions) changes(verb ChangeVerb, r Request) *Changes {
	return &Changes{Verb: verb, Pool: a.Pool, Client: a.Client, Options: Options{Done: r.Done, NewKey: r.NewKey}}
}

// Count bounds a filter (Changes.Bound), and returns how many calls an action would change.
func (a *Actions) Count(ctx context.Context, verb ChangeVerb, f *admin.Filter, r Request) (int64, error) {
	return a.changes(verb, r).count(ctx, f)
}

func (c *Changes) count(ctx context.Context, f *admin.Filter) (int64, error) {
	for _, s := range f.Statuses {
		if !slices.Contains(c.Verb.Allowed, s) {
			return 0, bad("status: %s is for calls that are %s", c.Verb.Name, joined(c.Verb.Allowed))
		}
	}
	return c.Bound(ctx, f)
}

// Filter is the calls that the request names otherwise than by id; false: it names none so.
func (r Request) Filter() (f admin.Filter, filtered bool, err error) {
	var search []string
	for _, word := range []struct{ name, value string }{
		{"status", r.Status}, {"queue", r.Queue}, {"task", r.Task}, {"code", r.Code}, {"error", r.Error}, {"limit", r.Limit}, {"since", r.Since},
	} {
		if word.value != "" {
			search = append(search, word.name+":"+strconv.Quote(word.value))
		}
	}
	for name, value := range map[string]*string{"key": r.Key, "shape": r.Shape} {
		if value != nil {
			search = append(search, name+":"+strconv.Quote(*value))
		}
	}
	if f, err = admin.ParseSearch(strings.Join(search, " "), time.Now()); err != nil {
		return f, false, bad("%s", err)
	}
	f.Before = r.Before
	return f, r.All || len(search) > 0, nil
}

func joined(statuses []callqueue.Status) string {
	texts := make([]string, len(statuses))
	for i, s := range statuses {
		texts[i] = string(s)
	}
	return strings.Join(texts, ", ")
}
