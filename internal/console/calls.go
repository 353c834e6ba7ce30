package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/admin"
)

const (
	perPage         = 100
	waitingStatuses = "new,error"
)

// callsBody is a list of calls, newest first.
type callsBody struct {
	Asked                url.Values // the filter
	Choices              []choice
	Calls                []admin.Call
	Newest, Newer, Older string // addresses of other pages; empty: there is none
}

// choice is a status, or several, that the list can show.
type choice struct {
	Value, Name, URL string
	Chosen           bool
}

// url is the address of the list with this filter and one parameter changed.
func (b callsBody) url(name, value string) string {
	var pairs []string
	for _, kept := range []string{"status", "queue", "key", "task", "no_key"} {
		pairs = append(pairs, kept, b.Asked.Get(kept))
	}
	return callsURL(append(pairs, name, value)...)
}

func filterOf(asked url.Values) (f admin.Filter, err error) {
	key, keyless := asked.Get("key"), asked.Get("no_key")
	switch {
	case keyless != "" && key != "":
		return f, badAddress("key and no_key exclude each other")
	case keyless != "" && keyless != "1":
		return f, badAddress("no_key is %q, and can only be 1", keyless)
	case keyless != "" || key != "":
		f.Key = &key
	}
	f.Queue, f.Task = asked.Get("queue"), asked.Get("task")
	if names := asked.Get("status"); names != "" {
		for name := range strings.SplitSeq(names, ",") {
			status := callqueue.Status(name)
			if !slices.Contains(callqueue.Statuses(), status) {
				return f, badAddress("%q is not a status: it is one of %v", name, callqueue.Statuses())
			}
			f.Statuses = append(f.Statuses, status)
		}
	}
	for name, to := range map[string]*int64{"before": &f.Before, "after": &f.After} {
		if text := asked.Get(name); text != "" {
			if *to, err = strconv.ParseInt(text, 10, 64); err != nil || *to < 1 {
				return f, badAddress("%s is %q, and not the id of a call", name, text)
			}
		}
	}
	if f.Before > 0 && f.After > 0 {
		return f, badAddress("before and after exclude each other")
	}
	return f, nil
}

func (p *pages) calls(ctx context.Context, r *http.Request) (*page, error) {
	f, err := filterOf(r.Form)
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
	b := callsBody{Asked: r.Form, Calls: list}
	newest := f.After == 0 && f.Before == 0
	if !newest {
		b.Newest = b.url("", "")
	}
	if len(list) > 0 && !newest {
		b.Newer = b.url("after", strconv.FormatInt(list[0].ID, 10))
	}
	if len(list) > 0 && (more || f.After > 0) {
		b.Older = b.url("before", strconv.FormatInt(list[len(list)-1].ID, 10))
	}
	here, status := "calls", r.Form.Get("status")
	if status == string(callqueue.StatusFailed) {
		here = "dead letters"
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
		b.Choices = append(b.Choices, choice{c[0], c[1], b.url("status", c[0]), status == c[0]})
	}
	if !slices.ContainsFunc(b.Choices, func(c choice) bool { return c.Chosen }) {
		b.Choices = append(b.Choices, choice{status, status, b.url("status", status), true})
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
	id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
	if err != nil || id < 1 {
		return nil, notFound("This is not the id of a call: a whole number from 1 on.")
	}
	record, err := p.client.Get(ctx, id)
	if errors.Is(err, callqueue.ErrNotFound) {
		return nil, notFound("There is no call %d: it was never inserted here, or has been removed.", id)
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
