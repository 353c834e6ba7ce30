package main

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/callq/callq/internal/config"
)

// clearScreen moves to the top left and clears what is below. Only a terminal gets it.
const clearScreen = "\x1b[H\x1b[J"

// watchStatus shows the status each time, until ctx ends, which is how it ends well. Once it has begun,
// Postgres may come and go: that is what one may be watching for.
func (p *program) watchStatus(ctx context.Context, every time.Duration) error {
	err := p.withPostgres(ctx, commandSettings(), func(ctx context.Context, cfg *config.Config, pool *pgxpool.Pool) error {
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		away := false
		for first := true; ; first = false {
			screen, err := p.statusScreen(ctx, cfg, pool)
			switch {
			case ctx.Err() != nil:
				return nil
			case err != nil && !isUnreachable(err):
				return err
			case err != nil && !away:
				fmt.Fprintf(p.stderr, "callq: status is not shown while Postgres cannot be reached: %s\n", oneLine(err.Error()))
			case err == nil:
				if err := p.showScreen(screen, first); err != nil {
					return err
				}
			}
			away = err != nil
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return nil
			}
		}
	})
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// statusScreen is one screen, whole, so that a terminal never shows a half.
func (p *program) statusScreen(ctx context.Context, cfg *config.Config, pool *pgxpool.Pool) ([]byte, error) {
	bounded, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	var screen bytes.Buffer
	on := *p
	on.stdout = &screen
	err := on.showStatus(bounded, cfg, pool)
	return screen.Bytes(), err
}

func (p *program) showScreen(screen []byte, first bool) error {
	before := ""
	switch {
	case p.output != "table":
	case isTerminal(p.stdout):
		before = clearScreen
	case !first:
		before = "\n"
	}
	_, err := fmt.Fprintf(p.stdout, "%s%s", before, screen)
	return err
}
