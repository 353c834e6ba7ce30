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
	Asked         url.Values // the filter
	Choices       []choice
	Calls         []admin.Call
	Newest, Older string // addresses of other pages; empty: there is none
}

// choice is a status, or several, that the list can show.
type choice struct {
	Value, Name, URL string
	Chosen           bool
}

// url is the address of the list with this filter and one parameter changed.
func (b callsBody) url(name, value string) string {
	var pairs []string
	for _, kept := range []string{"status", "queue", "key", "task"} {
		pairs = append(pairs, kept, b.Asked.Get(kept))
	}
	return callsURL(append(pairs, name, value)...)
}

func filterOf(asked url.Values) (f admin.Filter, err error) {
	if key := asked.Get("key"); key != "" {
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
	if text := asked.Get("before"); text != "" {
		if f.Before, err = strconv.ParseInt(text, 10, 64); err != nil || f.Before < 1 {
			return f, badAddress("before is %q, and not the id of a call", text)
		}
	}
	return f, nil
}

func (p *pages) calls(ctx context.Context, r *http.Request) (*page, error) {
	f, err := filterOf(r.Form)
	if err != nil {
		return nil, err
	}
	list, err := admin.ListCalls(ctx, p.Pool, f, perPage+1)
	if err != nil {
		return nil, err
	}
	b := callsBody{Asked: r.Form, Calls: list[:min(len(list), perPage)]}
	if f.Before > 0 {
		b.Newest = b.url("", "")
	}
	if len(list) > perPage {
		b.Older = b.url("before", strconv.FormatInt(list[perPage-1].ID, 10))
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
	return &page{Template: "calls", Title: "Calls", Here: here, Body: b}, nil
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
