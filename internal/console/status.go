package console

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/callq/callq/internal/admin"
)

// statusBody is the first page.
type statusBody struct {
	*admin.Status
	Notices []notice
}

// notice tells of something that keeps calls from being made.
type notice struct{ Text, URL string }

const mostNotices = 20

func (p *pages) status(ctx context.Context, _ *http.Request) (*page, error) {
	s, err := admin.ReadStatus(ctx, p.Pool)
	if err != nil {
		return nil, err
	}
	body := statusBody{Status: s, Notices: notices(s)}
	if more := len(body.Notices) - mostNotices; more > 0 {
		last := notice{Text: fmt.Sprintf("And %s more: callq status shows all.", number(more))}
		body.Notices = append(body.Notices[:mostNotices:mostNotices], last)
	}
	return &page{Template: "status", Title: "Status", Here: "status", Body: body}, nil
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
		return nil, notFound("There is no limit of this name. It was never published, or has been taken away.")
	}
	return &page{Template: "limit", Title: "Limit " + admin.Short(name), Body: limitBody{details, forecasts[0]}}, nil
}

func (p *pages) queue(ctx context.Context, r *http.Request) (*page, error) {
	name := r.PathValue("name")
	details, err := admin.ReadQueue(ctx, p.Pool, name)
	if err != nil {
		return nil, err
	}
	if details == nil {
		return nil, notFound("There is no queue of this name: it is not in the configuration in force, and no call waits in it. " +
			"Calls of it that have ended are in the list of calls.")
	}
	return &page{Template: "queue", Title: "Queue " + admin.Short(name), Body: details}, nil
}
