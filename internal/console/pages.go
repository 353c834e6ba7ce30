package console

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/admin"
	"github.com/callq/callq/internal/words"
)

const (
	perPage   = 100
	mostData  = 64 << 10 // bytes of call_data or result that are shown
	mostError = 4 << 10
)

// statusBody is the status with the last hour of what limits and queues did.
type statusBody struct {
	*admin.Status
	Limits []limitCard
	Queues []queueRow
}

// limitCard is a limit, what waits for it, and its last hour.
type limitCard struct {
	admin.Limit
	Due  int64 // calls of its queues
	Hour plot
}

// Badge is the state of the limit in a word or two, and Class how bad that is.
func (c limitCard) Badge() (text string) {
	switch state, _, _ := strings.Cut(c.State, ":"); {
	case c.Idle():
		return "idle"
	case state == "open" && c.Room == 0:
		return "full"
	default:
		return state
	}
}

// Class is how bad the state is, for the style.
func (c limitCard) Class() string {
	return map[string]string{"full": "bad", "open": "good", "idle": ""}[c.Badge()]
}

// queueRow is a queue with its last hour.
type queueRow struct {
	admin.Queue
	Waited string // 95 of 100 first attempts began within this time; empty: none did of late
	Hour   plot
}

func (p *pages) status(ctx context.Context, _ *http.Request) (*page, error) {
	return p.overview(ctx, "status", "Status")
}

func (p *pages) limits(ctx context.Context, _ *http.Request) (*page, error) {
	return p.overview(ctx, "limits-index", "Limits")
}

func (p *pages) queues(ctx context.Context, _ *http.Request) (*page, error) {
	return p.overview(ctx, "queues-index", "Queues")
}

// overview is a page of all limits and queues.
func (p *pages) overview(ctx context.Context, template, title string) (*page, error) {
	s, err := admin.ReadStatus(ctx, p.Pool)
	if err != nil {
		return nil, err
	}
	recent, err := admin.ReadRecent(ctx, p.Pool, plotBack)
	if err != nil {
		return nil, err
	}
	b, due := statusBody{Status: s}, map[string]int64{}
	for _, q := range s.Queues {
		due[q.Name] = q.Due
		b.Queues = append(b.Queues, queueRow{q, waited(recent.Queues[q.Name]), queuePlot(recent, q.Name)})
	}
	for _, l := range s.Limits {
		card := limitCard{Limit: l, Hour: limitPlot(recent, l)}
		for _, q := range l.Queues {
			card.Due += due[q]
		}
		b.Limits = append(b.Limits, card)
	}
	return &page{Template: template, Title: title, Body: b}, nil
}

// callsBody is a list of calls, newest first.
type callsBody struct {
	Asked         url.Values // the filter
	Calls         []admin.Call
	Newest, Older string             // addresses of other pages; empty: there is none
	Groups        []admin.ErrorGroup // of all dead letters of the queue and task, on their first page
}

func (p *pages) calls(ctx context.Context, r *http.Request) (*page, error) {
	asked := r.URL.Query()
	f := admin.Filter{Queue: asked.Get("queue"), Task: asked.Get("task")}
	if key := asked.Get("key"); key != "" {
		f.Key = &key
	}
	status := asked.Get("status")
	for name := range strings.FieldsFuncSeq(status, func(r rune) bool { return r == ',' }) {
		f.Statuses = append(f.Statuses, callqueue.Status(name))
	}
	if codes := asked.Get("code"); codes != "" {
		var err error
		if f.Codes, err = admin.ParseCodes(codes); err != nil {
			return refused(http.StatusBadRequest, "%s.", err), nil
		}
	}
	f.Before, _ = strconv.ParseInt(asked.Get("before"), 10, 64)
	list, err := admin.ListCalls(ctx, p.Pool, f, perPage+1)
	if err != nil {
		return nil, err
	}
	pageBefore := func(id string) string {
		other := r.URL.Query()
		other.Set("before", id)
		return "/calls?" + other.Encode()
	}
	b := callsBody{Asked: asked, Calls: list[:min(len(list), perPage)]}
	if f.Before > 0 {
		b.Newest = pageBefore("")
	}
	if len(list) > perPage {
		b.Older = pageBefore(strconv.FormatInt(list[perPage-1].ID, 10))
	}
	title := "Calls"
	if status == string(callqueue.StatusFailed) {
		title = "Dead letters"
		if f.Before == 0 && f.Codes == nil && f.Key == nil {
			if b.Groups, err = admin.ReadErrors(ctx, p.Pool, f); err != nil {
				return nil, err
			}
		}
	}
	return &page{Template: "calls", Title: title, Body: b}, nil
}

// callBody is the page of a call.
type callBody struct {
	*callqueue.Record
	Why    admin.Why
	Ledger []admin.Attempt
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
	attempts, err := admin.ReadAttempts(ctx, p.Pool, id)
	if err != nil {
		return nil, err
	}
	why, err := admin.Explain(ctx, p.Pool, record)
	if err != nil {
		return nil, err
	}
	return &page{Template: "call", Title: "Call " + name, Body: callBody{record, why, attempts}}, nil
}

// limitBody is the page of a limit.
type limitBody struct {
	*admin.LimitDetails
	Forecast admin.Forecast
	Hour     plot
}

func (p *pages) limit(ctx context.Context, r *http.Request) (*page, error) {
	name := r.PathValue("name")
	details, err := admin.ReadLimit(ctx, p.Pool, name)
	if err != nil {
		return nil, err
	}
	forecasts, err := admin.ReadForecasts(ctx, p.Pool, []string{name})
	if err != nil {
		return nil, err
	}
	if details == nil || len(forecasts) == 0 {
		return refused(http.StatusNotFound, "There is no limit of this name. It was never published, or has been taken away."), nil
	}
	_, recent, err := admin.ReadLimitHistory(ctx, p.Pool, name, plotBack)
	if err != nil {
		return nil, err
	}
	return &page{Template: "limit", Title: "Limit " + admin.Short(name), Body: limitBody{details, forecasts[0], limitPlot(recent, details.Limit)}}, nil
}

func (p *pages) queue(ctx context.Context, r *http.Request) (*page, error) {
	name := r.PathValue("name")
	details, err := admin.ReadQueue(ctx, p.Pool, name)
	if err != nil {
		return nil, err
	}
	if details == nil {
		return refused(http.StatusNotFound, "There is no queue of this name: it is not in the configuration in force, "+
			"and no call waits in it. Calls of it that have ended are in the list of calls."), nil
	}
	return &page{Template: "queue", Title: "Queue " + admin.Short(name), Body: details}, nil
}

// functions are those of the templates.
func functions() template.FuncMap {
	return template.FuncMap{
		"number":   words.Number,
		"ago":      admin.Ago,
		"short":    admin.Short,
		"dash":     admin.Dash,
		"text":     admin.Text,
		"join":     strings.Join,
		"count":    words.Count,
		"verb":     words.Verb,
		"begins":   strings.HasPrefix,
		"percent":  limitPart,
		"code":     codeText,
		"json":     func(data json.RawMessage) string { return cut(indented(data), mostData) },
		"cut":      func(text string) string { return cut(text, mostError) },
		"calls":    callsURL,
		"queueURL": func(name string) string { return "/queues/" + url.PathEscape(name) },
		"limitURL": func(name string) string { return "/limits/" + url.PathEscape(name) },
	}
}

// codeText is an HTTP status; empty: there was none.
func codeText(code *int) string {
	if code == nil {
		return ""
	}
	return strconv.Itoa(*code)
}

func limitPart(percent float64) string { return strconv.FormatFloat(percent, 'g', 6, 64) + " %" }

// cut shortens a text, and marks that.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") +
		fmt.Sprintf("… (cut here: it has %s bytes; `callq calls get` shows all)", words.Number(len(text)))
}

func indented(data json.RawMessage) string {
	var text bytes.Buffer
	if err := json.Indent(&text, data, "", "  "); err != nil { // there is none
		return admin.Dash(string(data))
	}
	return text.String()
}

// callsURL is the address of the list of calls with these parameters, as pairs of a name and a value.
func callsURL(pairs ...string) string {
	values := url.Values{}
	for pair := range slices.Chunk(pairs, 2) {
		values.Set(pair[0], pair[1])
	}
	return "/calls?" + values.Encode()
}
