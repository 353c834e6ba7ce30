package console

import (
	"context"
	"net/http"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/callq/callq/internal/admin"
	"github.com/callq/callq/internal/schema"
)

// statusBody is the status with the last hour of what limits and queues did.
type statusBody struct {
	*admin.Status
	Limits []limitCard
	Queues []queueRow
}

// Live is how many workers are alive.
func (b statusBody) Live() (n int64) {
	for _, w := range b.Workers {
		if w.Live {
			n++
		}
	}
	return n
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
	Ran    string // 95 of 100 attempts ended within this time; likewise
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
	recent, err := p.recent.read(ctx, p.Pool)
	if err != nil {
		return nil, err
	}
	b, due := statusBody{Status: s}, map[string]int64{}
	for _, q := range s.Queues {
		due[q.Name] = q.Due
		b.Queues = append(b.Queues, newQueueRow(q, recent))
	}
	for _, l := range s.Limits {
		card := limitCard{Limit: l, Hour: limitPlot(recent, l)}
		for _, q := range l.Queues {
			card.Due += due[q]
		}
		b.Limits = append(b.Limits, card)
	}
	return &page{Template: template, Title: title, Live: "yes", Body: b}, nil
}

// limitBody is the page of a limit.
type limitBody struct {
	*admin.LimitDetails
	Forecast     admin.Forecast
	Hour         plot
	Door, Narrow picture // of what the API can have seen, for wide screens and narrow ones
	Key          string  // of a limit per key: whose requests those are
	Refused      int64   // answers, in the last hour
	Waiting      []admin.Key
	Full         []admin.FullKey
}

// read reads what the limit did, and its keys. key is whose requests are drawn; nil: the fullest key's.
func (b *limitBody) read(ctx context.Context, pool schema.DB, key *string) error {
	_, recent, err := admin.ReadLimitHistory(ctx, pool, b.Name, plotBack)
	if err != nil {
		return err
	}
	b.Hour = limitPlot(recent, b.Limit)
	for _, m := range recent.Limits[b.Name] {
		b.Refused += m.Refused
	}
	door, err := admin.ReadDoor(ctx, pool, b.Name, key)
	if err != nil {
		return err
	}
	if door != nil {
		b.Key = door.Key
		b.Door, b.Narrow = doorPicture(door, 1180, 260), doorPicture(door, 345, 220)
	}
	if b.Waiting, err = admin.ReadKeys(ctx, pool, b.Name, 20); err == nil {
		b.Full, err = admin.ReadFullKeys(ctx, pool, b.Limit, 20)
	}
	return err
}

// Card is the limit as a card has it.
func (b limitBody) Card() limitCard { return limitCard{Limit: b.Limit} }

func (p *pages) limit(ctx context.Context, r *http.Request) (*page, error) {
	name := r.PathValue("name")
	details, err := admin.ReadLimit(ctx, p.Pool, name)
	if err != nil {
		return nil, err
	}
	if details == nil {
		return refused(http.StatusNotFound, "There is no limit of this name. It was never published, or has been taken away."), nil
	}
	b := limitBody{LimitDetails: details}
	var key *string
	if asked := r.URL.Query(); details.PerKey && asked.Has("key") {
		key = new(asked.Get("key"))
	}
	both, ctx := errgroup.WithContext(ctx) // the forecast takes about as long as all else
	both.Go(func() error {
		forecasts, err := admin.ReadForecasts(ctx, p.Pool, []string{name})
		if len(forecasts) > 0 {
			b.Forecast = forecasts[0]
		}
		return err
	})
	both.Go(func() error { return b.read(ctx, p.Pool, key) })
	if err := both.Wait(); err != nil {
		return nil, err
	}
	return &page{Template: "limit", Title: "Limit " + admin.Short(name), Live: "yes", Body: b}, nil
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
	recent, err := p.recent.read(ctx, p.Pool)
	if err != nil {
		return nil, err
	}
	b := queueBody{details, newQueueRow(details.Queue, recent)}
	return &page{Template: "queue", Title: "Queue " + admin.Short(name), Live: "yes", Body: b}, nil
}

// queueBody is the page of a queue.
type queueBody struct {
	*admin.QueueDetails
	Row queueRow
}

func newQueueRow(q admin.Queue, recent *admin.Recent) queueRow {
	minutes := recent.Queues[q.Name]
	return queueRow{
		q, latest(minutes, func(m admin.QueueMinute) *float64 { return m.WaitP95 }),
		latest(minutes, func(m admin.QueueMinute) *float64 { return m.RunP95 }), queuePlot(recent, q.Name),
	}
}
