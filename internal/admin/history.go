package admin

import (
	"context"
	"time"
)

// LimitMinute is what a limit did in a minute. Minutes in which nothing was used of it, waited for it, or kept it closed have none.
type LimitMinute struct {
	Limit    string    `json:"limit" db:"limit_name"`
	Minute   time.Time `json:"minute" db:"minute"`     // when it began
	Used     int64     `json:"used" db:"used"`         // units of the requests that were sent in it; of a limit of concurrency: occupied at its end
	Capacity float64   `json:"capacity" db:"capacity"` // units that a minute has on average; of a limit of concurrency: at once
	Waiting  int64     `json:"waiting" db:"waiting"`   // due calls of its queues at the end
	Refused  int64     `json:"refused" db:"refused"`   // answers that said that a limit was full
	// NextUnit is the longest that a due call had to wait in it for the next unit, in ms. nil: none had to, or that is not known, as of
	// a limit of concurrency.
	NextUnit *int64         `json:"next_unit_ms" db:"next_unit"`
	Closed   map[string]int `json:"closed" db:"closed"` // for how many seconds, by cause; nil: it was open
}

// QueueMinute is what a queue did in a minute. Minutes in which no call was due, started or ended have none.
type QueueMinute struct {
	Queue   string    `json:"queue" db:"queue"`
	Minute  time.Time `json:"minute" db:"minute"`
	Due     int64     `json:"due" db:"due"` // at the end
	Started int64     `json:"started" db:"started"`
	Done    int64     `json:"done" db:"done"`
	Errors  int64     `json:"errors" db:"errors"`
	// In ms; nil: there were none.
	WaitP50 *float64 `json:"wait_p50_ms" db:"wait_p50"`
	WaitP95 *float64 `json:"wait_p95_ms" db:"wait_p95"`
	RunP50  *float64 `json:"run_p50_ms" db:"run_p50"`
	RunP95  *float64 `json:"run_p95_ms" db:"run_p95"`
}

// Recent is what limits and queues did of late, by name, in the order of the minutes.
type Recent struct {
	Since, Until time.Time // the first minute, and the one after the last
	Limits       map[string][]LimitMinute
	Queues       map[string][]QueueMinute
}

const (
	limitMinutesSQL = `
SELECT limit_name, minute, used, capacity, coalesce(waiting, 0) AS waiting, coalesce(refused, 0) AS refused, next_unit, closed FROM callq.call_limit_history
WHERE minute >= $1 AND ($2::text IS NULL OR limit_name = $2) ORDER BY limit_name, minute`

	queueMinutesSQL = `
SELECT queue, minute, due, started, done, errors, wait_p50, wait_p95, run_p50, run_p95 FROM callq.call_queue_history
WHERE minute >= $1 ORDER BY queue, minute`
)

// ReadRecent reads the history of all limits and queues for so long back.
func ReadRecent(ctx context.Context, pool Pool, back time.Duration) (*Recent, error) {
	return snapshot(ctx, pool, func(r *reader) *Recent {
		h := r.minutes(back)
		for _, m := range list[LimitMinute](r, "read the history of limits", limitMinutesSQL, h.Since, nil) {
			h.Limits[m.Limit] = append(h.Limits[m.Limit], m)
		}
		for _, m := range list[QueueMinute](r, "read the history of queues", queueMinutesSQL, h.Since) {
			h.Queues[m.Queue] = append(h.Queues[m.Queue], m)
		}
		return h
	})
}

// ReadLimitHistory reads the history of one limit, and the limit; nil: there is none.
func ReadLimitHistory(ctx context.Context, pool Pool, name string, back time.Duration) (*Limit, *Recent, error) {
	var l *Limit
	h, err := snapshot(ctx, pool, func(r *reader) *Recent {
		if limits := r.limits([]string{name}, nil); len(limits) > 0 {
			l = &limits[0]
		}
		h := r.minutes(back)
		h.Limits[name] = list[LimitMinute](r, "read the history of the limit", limitMinutesSQL, h.Since, name)
		return h
	})
	return l, h, err
}

// minutes are those from so long back until now.
func (r *reader) minutes(back time.Duration) *Recent {
	until := r.now.Truncate(time.Minute)
	return &Recent{Since: until.Add(-back), Until: until, Limits: map[string][]LimitMinute{}, Queues: map[string][]QueueMinute{}}
}

// Columns are what some minutes have, in so many columns of the same width: the average of each column's minutes, in which minutes
// without a row count as 0.
func Columns[T any](h *Recent, minutes []T, columns int, at func(T) time.Time, of func(T) float64) []float64 {
	sums := make([]float64, columns)
	width := h.Until.Sub(h.Since) / time.Duration(columns)
	for _, m := range minutes {
		if n := int(at(m).Sub(h.Since) / max(width, 1)); n >= 0 && n < columns {
			sums[n] += of(m)
		}
	}
	for i := range sums {
		sums[i] /= max(1, width.Minutes())
	}
	return sums
}
