package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/callq/callq/internal/admin"
	"github.com/callq/callq/internal/config"
)

func (p *program) limitsForecastCommand() *cobra.Command {
	return &cobra.Command{
		Use: "forecast [LIMIT]", Short: "Say until when the calls that wait now keep each limit busy",
		Long: "Say until when the calls that wait now keep each limit busy, if it alone held them up, no others came and\n" +
			"each took one attempt. Where a limit is per key it is the key with most calls that decides; of a limit by cost,\n" +
			"calls are taken to cost what those of the last day did; of one of calls at once, to take as long. Where a queue\n" +
			"is outside of its hours, or closes before, nothing is foretold but that.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.ask(cmd.Context(), func(ctx context.Context, _ *config.Config, pool *pgxpool.Pool) error {
				var names []string // all
				if len(args) > 0 {
					names = args
				}
				rows, err := admin.ReadForecasts(ctx, pool, names)
				if err != nil {
					return err
				}
				if len(args) > 0 && len(rows) == 0 {
					return unknownRule("limit", args[0])
				}
				return printRows(p, rows, forecastColumns()...)
			})
		},
	}
}

func forecastColumns() []column[admin.Forecast] {
	return []column[admin.Forecast]{
		{"LIMIT", func(f admin.Forecast) string { return f.Limit }},
		{"RATE", func(f admin.Forecast) string { return f.Rate }},
		{"WAITING", func(f admin.Forecast) string { return strconv.FormatInt(f.Waiting, 10) }},
		{"MOST OF A KEY", func(f admin.Forecast) string {
			if f.Key == nil || f.OfKey == 0 {
				return "-"
			}
			return fmt.Sprintf("%d (%s)", f.OfKey, printable(short(dash(*f.Key))))
		}},
		{"BUSY FOR", func(f admin.Forecast) string {
			if f.Lasts == nil {
				return "unknown: " + f.State
			}
			return "~" + f.Lasts.Round(time.Second).String()
		}},
		{"UNTIL", func(f admin.Forecast) string { return instant(f.Until) }},
	}
}
