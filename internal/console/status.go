package console

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/callq/callq/internal/admin"
)

// statusBody is the first page.
type statusBody struct {
	*admin.Status
	Notices    []notice
	Differs    []difference
	MoreQueues int // how many queues are not shown
}

// notice tells of something that keeps calls from being made.
type notice struct{ Text, URL string }

// difference is a setting in which live workers differ.
type difference struct {
	Name   string
	Wanted []admin.Want
	Holds  string
}

// Producers may put calls into any number of queues.
const (
	mostQueues  = 500
	mostNotices = 20
)

// The first page may reload itself after this many seconds.
const (
	leastEvery = 2
	mostEvery  = 3600
)

func (p *pages) status(ctx context.Context, r *http.Request) (*page, error) {
	q, err := query(r, "every")
	if err != nil {
		return nil, err
	}
	every, err := everyOf(q)
	if err != nil {
		return nil, err
	}
	s, err := admin.ReadStatus(ctx, p.Pool)
	if err != nil {
		return nil, err
	}
	body := statusBody{Status: s, Notices: notices(s)}
	if more := len(body.Notices) - mostNotices; more > 0 {
		body.Notices = append(body.Notices[:mostNotices:mostNotices], notice{Text: fmt.Sprintf("And %s more: callq status shows all.", number(more))})
	}
	for _, key := range slices.Sorted(maps.Keys(s.HTTPTask)) {
		body.Differs = append(body.Differs, difference{"http_task." + key, s.HTTPTask[key], admin.EachOwn})
	}
	if body.MoreQueues = max(0, len(s.Queues)-mostQueues); body.MoreQueues > 0 {
		s.Queues = s.Queues[:mostQueues]
	}
	return &page{Template: "status", Title: "Status", Here: "status", Every: every, Body: body}, nil
}

func everyOf(q url.Values) (int, error) {
	text := q.Get("every")
	if text == "" {
		return 0, nil
	}
	every, err := strconv.Atoi(text)
	if err != nil || every < leastEvery || every > mostEvery {
		return 0, badQuery("every is %q, and not a number of seconds from %d to %d", text, leastEvery, mostEvery)
	}
	return every, nil
}

// notices returns what an operator should know at once, the worst first.
func notices(s *admin.Status) []notice {
	var list []notice
	add := func(url, format string, args ...any) { list = append(list, notice{fmt.Sprintf(format, args...), url}) }
	if len(s.Dispatchers) == 0 {
		add("", "No dispatcher is alive: nothing is claimed until one runs (callq serve, callq dispatch).")
	}
	if !slices.ContainsFunc(s.Workers, func(w admin.Worker) bool { return w.Live }) {
		add("", "No worker is alive: nothing is sent until one runs (callq serve, callq work).")
	}
	if text := s.OthersText(); text != "" {
		add("", "%s.", text)
	}
	for _, t := range s.Unhandled {
		url := callsURL("task", t.Task, "status", waitingStatuses)
		if t.Unnamed > 0 {
			url = ""
		}
		add(url, "N%s.", strings.TrimPrefix(t.String(), "n"))
	}
	for _, q := range s.Queues {
		switch url := pathTo("queues", "queue", q.Name); {
		case !q.Configured && q.Waiting > 0:
			add(url, "Queue %s is not in the configuration in force: its calls wait.", admin.Short(q.Name))
		case q.Paused != nil || q.PausedKeys > 0:
			add(url, "Queue %s: %s.", admin.Short(q.Name), q.StateText())
		}
	}
	for _, l := range s.Limits {
		if !l.Idle() && (l.State != "open" || l.Missing > 0 || l.PausedKeys > 0) {
			add(pathTo("limits", "", l.Name), "Limit %s: %s.", l.Name, l.StateText())
		}
	}
	return list
}

// limitBody is the page of a limit.
type limitBody struct {
	*admin.LimitDetails
	Forecast admin.Forecast
}

func (p *pages) limit(ctx context.Context, r *http.Request) (*page, error) {
	name, err := named(r)
	if err != nil {
		return nil, err
	}
	body := limitBody{}
	err = admin.InSnapshot(ctx, p.Pool, func(tx pgx.Tx) error {
		if body.LimitDetails, err = admin.ReadLimit(ctx, tx, name); err != nil {
			return err
		}
		if body.LimitDetails == nil {
			return &refusal{status: http.StatusNotFound, text: "There is no limit of this name. It was never published, or has been taken away."}
		}
		forecasts, err := admin.ReadForecasts(ctx, tx, []string{name})
		if len(forecasts) > 0 {
			body.Forecast = forecasts[0]
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return &page{Template: "limit", Title: "Limit " + admin.Short(name), Body: body}, nil
}

// queueBody is the page of a queue.
type queueBody struct {
	admin.Queue
	Tasks   []admin.Waiting // waiting calls by task
	Pauses  []admin.Pause
	Changes []admin.Change
}

func (p *pages) queue(ctx context.Context, r *http.Request) (*page, error) {
	name, err := named(r)
	if err != nil {
		return nil, err
	}
	body := queueBody{}
	err = admin.InSnapshot(ctx, p.Pool, func(tx pgx.Tx) error {
		waiting, err := admin.ReadWaitingOf(ctx, tx, name)
		if err != nil {
			return err
		}
		queues, err := admin.ReadQueues(ctx, tx, waiting)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(queues, func(q admin.Queue) bool { return q.Name == name })
		if i < 0 {
			return &refusal{status: http.StatusNotFound, text: "There is no queue of this name: it is not in the configuration in force, and no call waits in it. " +
				"Calls of it that have ended are in the list of calls."}
		}
		body.Queue = queues[i]
		body.Tasks = slices.DeleteFunc(waiting, func(w admin.Waiting) bool { return w.Queue != name })
		if body.Pauses, err = admin.ReadPauses(ctx, tx, "queue", name); err != nil {
			return err
		}
		body.Changes, err = admin.ReadChanges(ctx, tx, "queue", name)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &page{Template: "queue", Title: "Queue " + admin.Short(name), Body: body}, nil
}

// named returns the name in the path of a page that has no parameters.
func named(r *http.Request) (string, error) {
	if _, err := query(r); err != nil {
		return "", err
	}
	name := r.PathValue("name")
	if !isText(name) {
		return "", &refusal{status: http.StatusNotFound, text: "There is nothing of this name: it is not valid UTF-8."}
	}
	return name, nil
}

// query returns the parameters. Each may be given once.
func query(r *http.Request, allowed ...string) (url.Values, error) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, badQuery("what follows the ? is not a query: %v", err)
	}
	for name, list := range values {
		switch {
		case !slices.Contains(allowed, name):
			return nil, badQuery("there is no parameter %q here", name)
		case len(list) > 1:
			return nil, badQuery("%s is given %d times", name, len(list))
		case !isText(list[0]):
			return nil, badQuery("%s is not valid UTF-8, which every call's is", name)
		}
	}
	return values, nil
}

func badQuery(format string, args ...any) error {
	return &refusal{status: http.StatusBadRequest, text: "The address is wrong: " + fmt.Sprintf(format, args...) + "."}
}
