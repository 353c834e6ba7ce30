package main

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/callq/callq/internal/config"
	"github.com/callq/callq/internal/console"
	"github.com/callq/callq/internal/web"
)

const (
	pageWithin = 5 * time.Second
	pageConns  = 2 // beside those of the parts; made when somebody looks
	pageIdle   = time.Minute
)

// openPages makes the pages for a listener, on connections of their own; nil: they are turned off.
func openPages(ctx context.Context, cfg *config.Config, address net.Addr, log *slog.Logger) (http.Handler, func(), error) {
	if !cfg.HTTP.Pages {
		return nil, func() {}, nil
	}
	pool, err := openPagesPool(ctx, cfg)
	if err != nil {
		return nil, nil, err
	}
	handler, err := console.New(console.Config{
		Pool: pool, Timeout: pageWithin, Known: web.KnownHosts(address, cfg.HTTP.Listen), Logger: log,
		Explain: func(err error) (away bool, text string) { return isUnreachable(err), oneLine(explained(err).Error()) },
	})
	if err != nil {
		pool.Close()
		return nil, nil, err
	}
	if tcp, ok := address.(*net.TCPAddr); !ok || !tcp.IP.IsLoopback() {
		log.WarnContext(ctx, "pages show calls to all who reach this address, and ask for no password", "address", address.String(),
			"fix", "bar the way to it, or set http.pages: false (CALLQ_HTTP_PAGES)")
	}
	return handler, func() { closePool(pool, log) }, nil
}

// openPagesPool makes connections that read only, and not for long. Behind a pooler statement_timeout is not set; but
// pgx has Postgres end what nobody waits for any more.
func openPagesPool(ctx context.Context, cfg *config.Config) (*pgxpool.Pool, error) {
	settings := commandSettings()
	settings["default_transaction_read_only"] = "on"
	settings["statement_timeout"] = pageWithin.String()
	pc, err := poolConfig(cfg, settings, pageConns)
	if err != nil {
		return nil, err
	}
	pc.MaxConnIdleTime = pageIdle
	return pgxpool.NewWithConfig(ctx, pc)
}
