package console

import (
	"context"
	"net/http"
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

func (p *pages) status(ctx context.Context, _ *http.Request) (*page, error) {
	s, err := admin.ReadStatus(ctx, p.Pool)
	if err != nil {
		return nil, err
	}
	return &page{Template: "status", Title: "Status", Here: "status", Body: statusBody{s, notices(s)}}, nil
}

// notices are the status's problems, with where to read more.
func notices(s *admin.Status) []notice {
	var list []notice
	for _, p := range s.Problems() {
		url := ""
		switch {
		case p.Queue != "":
			url = pathTo("queues", p.Queue)
		case p.Limit != "":
			url = pathTo("limits", p.Limit)
		case p.Task != "":
			url = callsURL("task", p.Task, "status", waitingStatuses)
		}
		list = append(list, notice{strings.ToUpper(p.What[:1]) + p.What[1:] + ".", url})
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
