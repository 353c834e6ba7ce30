package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"

	"github.com/callq/callq/internal/budget"
	"github.com/callq/callq/internal/limit"
)

// budgets measures how many draws of one unit a second callers get answered at once, by callq's budgets and by redis_rate, in
// turn on one Redis: where all are granted, and where the rate is used up.
func (b *bench) budgets(ctx context.Context, out io.Writer) (err error) {
	options, err := redis.ParseURL(b.servers.redis.URL())
	if err != nil {
		return err
	}
	options.PoolSize, options.MaxRetries = 64, -1
	client := redis.NewClient(options)
	defer func() { err = errors.Join(err, client.Close()) }()
	limiter := redis_rate.NewLimiter(client)
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "draws a second\tcallers\tcallq\tredis_rate\tratio")
	for _, s := range []struct {
		name   string
		rate   limit.Rate
		burst  int64
		period time.Duration
	}{
		{"granted", limit.Rate{Units: 10_000_000, Window: time.Second}, 10_000_000, time.Second},
		{"refused", limit.Rate{Units: 1, Window: time.Hour}, 1, time.Hour},
	} {
		units := budget.Units{Name: s.name, Rule: budget.Rule{Rate: s.rate, Burst: s.burst}, N: 1}
		theirs := redis_rate.Limit{Rate: int(s.rate.Units), Burst: int(s.burst), Period: s.period}
		for _, callers := range []int{1, 16, 64} {
			draws := []func(context.Context) error{
				func(ctx context.Context) error { _, err := budget.Draw(ctx, client, "", 0, units); return err },
				func(ctx context.Context) error { _, err := limiter.Allow(ctx, s.name, theirs); return err },
			}
			var figures [3][]float64          // callq's, redis_rate's, and their ratio
			for round := range b.rounds + 1 { // one warms up; each begins with the other
				var rates [2]float64
				for i := range draws {
					which := (i + round) % 2
					if rates[which], err = drawFor(ctx, callers, draws[which]); err != nil {
						return err
					}
				}
				if round > 0 {
					for i, figure := range []float64{rates[0], rates[1], rates[0] / rates[1]} {
						figures[i] = append(figures[i], figure)
					}
				}
			}
			for i := range figures {
				slices.Sort(figures[i])
			}
			half := b.rounds / 2
			fmt.Fprintf(table, "%s\t%d\t%.0f\t%.0f\t%.2f\n", s.name, callers, figures[0][half], figures[1][half], figures[2][half])
		}
	}
	return table.Flush()
}

const drawingFor = 300 * time.Millisecond

// drawFor has so many callers draw one after another, and says how often a second they did.
func drawFor(ctx context.Context, callers int, draw func(context.Context) error) (float64, error) {
	var all sync.WaitGroup
	var draws atomic.Int64
	errs := make([]error, callers)
	began := time.Now()
	for i := range callers {
		all.Go(func() {
			for time.Since(began) < drawingFor && errs[i] == nil {
				errs[i] = draw(ctx)
				draws.Add(1)
			}
		})
	}
	all.Wait()
	return float64(draws.Load()) / time.Since(began).Seconds(), errors.Join(errs...)
}
