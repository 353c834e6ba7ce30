package console

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/actions"
	"github.com/callq/callq/internal/admin"
	"github.com/callq/callq/internal/words"
)

const (
	perPage      = 100
	mostCounted  = 10_000 // calls; it takes some hundredths of a second
	mostSearched = 1_000  // likewise, where errors are searched
	mostGrouped  = 5_000  // dead letters; likewise
)

// callsBody is a list of calls, newest first.
type callsBody struct {
	Search        string
	Wrong         string // what cannot be read of it
	Words         string
	Calls         []admin.Call
	Fit           string             // how many fit, and how exact that is
	Newest, Older string             // addresses of other pages; empty: there is none
	Groups        []admin.ErrorGroup // of all dead letters of the queue and task, on their first page
	Grouped       int64              // how many dead letters they have
	Bulk          []string           // what may be done to all that fit: retry, cancel, delete, run
	pairs         []string           // the search, as pairs of a field of a form and its value
}

// Pairs is the search for a form that acts on all that fit.
func (b callsBody) Pairs() []string { return b.pairs }

// What people look for first.
func (callsBody) Presets() []struct{ Name, Search string } {
	return []struct{ Name, Search string }{
		{"all", ""},
		{"waiting", "status:waiting"},
		{"dispatched", "status:dispatched"},
		{"to be retried", "status:error"},
		{"dead letters", "status:failed"},
		{"done", "status:done"},
		{"cancelled", "status:cancelled"},
	}
}

func (p *pages) calls(ctx context.Context, r *http.Request) (*page, error) {
	asked := r.URL.Query()
	search := strings.TrimSpace(asked.Get("q"))
	if id, err := strconv.ParseInt(search, 10, 64); err == nil && id > 0 { // a call's number alone
		r.SetPathValue("id", search)
		return p.call(ctx, r)
	}
	b := callsBody{Search: search, Words: admin.SearchWords}
	shown := &page{Template: "calls", Title: "Calls", Search: search, Body: &b}
	f, err := admin.ParseSearch(search, time.Now())
	if err != nil {
		b.Wrong, shown.Status = err.Error(), http.StatusBadRequest
		return shown, nil
	}
	f.Before, _ = strconv.ParseInt(asked.Get("before"), 10, 64)
	list, err := admin.ListCalls(ctx, p.Pool, f, perPage+1)
	if err != nil {
		return nil, err
	}
	pageBefore := func(id string) string {
		values := url.Values{"q": {search}}
		if id != "" {
			values.Set("before", id)
		}
		return p.Prefix + "/calls?" + values.Encode()
	}
	b.Calls = list[:min(len(list), perPage)]
	if f.Before > 0 {
		b.Newest = pageBefore("")
	}
	if len(list) > perPage {
		b.Older = pageBefore(strconv.FormatInt(list[perPage-1].ID, 10))
	}
	if b.Fit, err = p.fit(ctx, f, len(list)); err != nil {
		return nil, err
	}
	b.pairs, b.Bulk = filterPairs(f), bulks(f)
	if len(f.Statuses) == 1 && f.Statuses[0] == callqueue.StatusFailed {
		shown.Title = "Dead letters"
		if f.Before == 0 && f.Codes == nil && f.Key == nil && f.Error == "" && f.Since == nil && f.Limit == "" && f.Shape == nil {
			if b.Groups, err = admin.ReadErrors(ctx, p.Pool, f, mostGrouped); err != nil {
				return nil, err
			}
			for _, g := range b.Groups {
				b.Grouped += g.Calls
			}
		}
	}
	return shown, nil
}

// bulks are the actions that calls of the filter's statuses allow; none for a filter that fits all calls.
func bulks(f admin.Filter) (names []string) {
	if f.Search() == "" {
		return nil
	}
	for _, name := range []string{"retry", "run", "cancel", "delete"} {
		verb, _ := actions.Verb(name)
		if !slices.ContainsFunc(f.Statuses, func(s callqueue.Status) bool { return !slices.Contains(verb.Allowed, s) }) {
			names = append(names, name)
		}
	}
	return names
}

// filterPairs is a filter as pairs of a field of a form and its value.
func filterPairs(f admin.Filter) []string {
	var statuses []string
	for _, s := range f.Statuses {
		statuses = append(statuses, string(s))
	}
	pairs := []string{"queue", f.Queue, "task", f.Task, "status", strings.Join(statuses, ","), "code", f.CodesText(), "error", f.Error, "limit", f.Limit}
	for name, value := range map[string]*string{"key": f.Key, "shape": f.Shape} {
		if value != nil {
			pairs = append(pairs, name, *value)
		}
	}
	if f.Since != nil {
		pairs = append(pairs, "since", f.Since.UTC().Format(time.RFC3339))
	}
	return pairs
}

// Some reports whether there are more dead letters than the groups have.
func (b callsBody) Some() bool { return b.Grouped >= mostGrouped }

// fit says how many calls fit a filter. It counts up to a bound.
func (p *pages) fit(ctx context.Context, f admin.Filter, listed int) (string, error) {
	before, most := f.Before, int64(mostCounted)
	f.Before = 0
	if f.Error != "" || f.Shape != nil {
		most = mostSearched
	}
	n := int64(listed)
	if listed > perPage || before > 0 {
		var err error
		if n, err = admin.CountUpTo(ctx, p.Pool, f, most+1); err != nil {
			return "", err
		}
	}
	if n > most {
		return "more than " + words.Count(most, "call") + " fit", nil
	}
	return "exactly " + words.Count(n, "call") + " " + words.Verb(n, "fits", "fit"), nil
}

// callBody is the page of a call.
type callBody struct {
	*callqueue.Record
	Why     admin.Why
	Ledger  []admin.Attempt
	Times   timeline
	Changes []admin.Change
}

func (p *pages) call(ctx context.Context, r *http.Request) (*page, error) {
	name := r.PathValue("id")
	id, _ := strconv.ParseInt(name, 10, 64) // no call has the id 0
	record, err := p.Client.Get(ctx, id)
	if errors.Is(err, callqueue.ErrNotFound) {
		return refused(http.StatusNotFound, "There is no call %s: it was never inserted here, or has been removed.", name), nil
	}
	if err != nil {
		return nil, err
	}
	b := callBody{Record: record}
	if b.Ledger, err = admin.ReadAttempts(ctx, p.Pool, id); err != nil {
		return nil, err
	}
	if b.Why, err = admin.Explain(ctx, p.Pool, record); err != nil {
		return nil, err
	}
	if b.Changes, err = admin.ReadChanges(ctx, p.Pool, "calls", name); err != nil {
		return nil, err
	}
	b.Times = newTimeline(record, b.Ledger, time.Now())
	return &page{Template: "call", Title: "Call " + name, Live: "yes", Body: b}, nil
}
