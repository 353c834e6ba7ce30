package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/admin"
)

const (
	perPage         = 100
	waitingStatuses = "new,error"
)

// callsBody is a list of calls, newest first.
type callsBody struct {
	Status, Queue, Key, Task string // the filter, as it was given
	Keyless                  bool   // only calls without a key
	Choices                  []choice
	Calls                    []admin.Call
	Newest, Newer, Older     string // addresses of other pages; empty: there is none
}

// choice is a status, or several, that the list can show.
type choice struct {
	Value, Name, URL string
	Chosen           bool
}

// readCalls reads the filter.
func readCalls(r *http.Request) (callsBody, admin.Filter, error) {
	var f admin.Filter
	q, err := query(r, "status", "queue", "key", "no_key", "task", "before", "after")
	if err != nil {
		return callsBody{}, f, err
	}
	b := callsBody{Status: q.Get("status"), Queue: q.Get("queue"), Key: q.Get("key"), Task: q.Get("task"), Keyless: q.Get("no_key") != ""}
	f.Queue, f.Task = b.Queue, b.Task
	switch {
	case b.Keyless && b.Key != "":
		return b, f, badQuery("key and no_key exclude each other")
	case b.Keyless && q.Get("no_key") != "1":
		return b, f, badQuery("no_key is %q, and can only be 1", q.Get("no_key"))
	case b.Keyless || b.Key != "":
		f.Key = &b.Key
	}
	if b.Status != "" {
		for _, name := range strings.Split(b.Status, ",") {
			status := callqueue.Status(name)
			if !slices.Contains(callqueue.Statuses(), status) {
				return b, f, badQuery("%q is not a status: it is one of %v", name, callqueue.Statuses())
			}
			f.Statuses = append(f.Statuses, status)
		}
	}
	for name, to := range map[string]*int64{"before": &f.Before, "after": &f.After} {
		if text := q.Get(name); text != "" {
			if *to, err = strconv.ParseInt(text, 10, 64); err != nil || *to < 1 {
				return b, f, badQuery("%s is %q, and not the id of a call", name, text)
			}
		}
	}
	if f.Before > 0 && f.After > 0 {
		return b, f, badQuery("before and after exclude each other")
	}
	return b, f, nil
}

// url is the address of the list with this filter and one parameter changed.
func (b callsBody) url(name, value string) string {
	keyless := ""
	if b.Keyless {
		keyless = "1"
	}
	return callsURL("status", b.Status, "queue", b.Queue, "key", b.Key, "task", b.Task, "no_key", keyless, name, value)
}

func (p *pages) calls(ctx context.Context, r *http.Request) (*page, error) {
	b, f, err := readCalls(r)
	if err != nil {
		return nil, err
	}
	list, more, err := p.list(ctx, f)
	if err == nil && f.After > 0 && !more { // the newest page, whole
		f.After = 0
		list, more, err = p.list(ctx, f)
	}
	if err != nil {
		return nil, err
	}
	b.Calls = list
	newest := f.After == 0 && f.Before == 0
	if !newest {
		b.Newest = b.url("", "")
	}
	if len(list) > 0 {
		if !newest {
			b.Newer = b.url("after", strconv.FormatInt(list[0].ID, 10))
		}
		if more || f.After > 0 {
			b.Older = b.url("before", strconv.FormatInt(list[len(list)-1].ID, 10))
		}
	}
	for _, c := range [][2]string{
		{"", "all"},
		{waitingStatuses, "waiting"},
		{"dispatched", "dispatched"},
		{"error", "to be retried"},
		{"failed", "dead letters"},
		{"done", "done"},
		{"cancelled", "cancelled"},
	} {
		b.Choices = append(b.Choices, choice{c[0], c[1], b.url("status", c[0]), b.Status == c[0]})
	}
	if !slices.ContainsFunc(b.Choices, func(c choice) bool { return c.Chosen }) {
		b.Choices = append(b.Choices, choice{b.Status, b.Status, b.url("status", b.Status), true})
	}
	here := "calls"
	if b.Status == string(callqueue.StatusFailed) {
		here = "dead letters"
	}
	return &page{Template: "calls", Title: "Calls", Here: here, Body: b}, nil
}

// list reads a page of calls, and whether there are more in its direction.
func (p *pages) list(ctx context.Context, f admin.Filter) (calls []admin.Call, more bool, err error) {
	calls, err = admin.ListCalls(ctx, p.Pool, f, perPage+1)
	if err != nil || len(calls) <= perPage {
		return calls, false, err
	}
	if f.After > 0 {
		return calls[1:], true, nil
	}
	return calls[:perPage], true, nil
}

// callBody is the page of a call.
type callBody struct {
	*callqueue.Record
	Why    []admin.Reason
	Ledger []admin.Attempt
}

func (p *pages) call(ctx context.Context, r *http.Request) (*page, error) {
	if _, err := query(r); err != nil {
		return nil, err
	}
	id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
	if err != nil || id < 1 {
		return nil, &refusal{status: http.StatusNotFound, text: "This is not the id of a call: a whole number from 1 on."}
	}
	record, err := p.client.Get(ctx, id)
	if errors.Is(err, callqueue.ErrNotFound) {
		return nil, &refusal{status: http.StatusNotFound, text: fmt.Sprintf("There is no call %d: it was never inserted here, or has been removed.", id)}
	}
	if err != nil {
		return nil, err
	}
	attempts, err := admin.ReadAttempts(ctx, p.Pool, id)
	if err != nil {
		return nil, err
	}
	why, err := admin.Explain(ctx, p.Pool, record)
	if err != nil {
		return nil, err
	}
	return &page{Template: "call", Title: fmt.Sprintf("Call %d", id), Body: callBody{record, why.Reasons, attempts}}, nil
}

// isText reports whether Postgres would accept the text.
func isText(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }
