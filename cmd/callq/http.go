package main

import (
	"bytes"
	"context"
	"log"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/callq/callq/internal/config"
	"github.com/callq/callq/internal/console"
)

const (
	headersWithin = 5 * time.Second
	pageWithin    = 5 * time.Second
	pageConns     = 2 // beside those of the parts; made when somebody looks
)

// listen opens the http listener; nil: there is none.
func listen(ctx context.Context, addr string, must bool, log *slog.Logger) (net.Listener, error) {
	if addr == "off" {
		return nil, nil
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	switch {
	case err != nil && must:
		return nil, exitf(exitFailed, "serve http: %w; set http.listen (CALLQ_HTTP_LISTEN) to an address that is free, or off", err)
	case err != nil:
		log.WarnContext(ctx, "http not served", "listen", addr, "err", err)
		return nil, nil
	}
	log.InfoContext(ctx, "http served", "address", listener.Addr().String())
	return listener, nil
}

// serveHTTP serves until ctx ends.
func serveHTTP(ctx context.Context, listener net.Listener, handler http.Handler, log *slog.Logger) {
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: headersWithin,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	var served error
	ended := make(chan struct{})
	go func() { served = server.Serve(listener); close(ended) }()
	select {
	case <-ended:
		log.ErrorContext(ctx, "http no longer served", "err", served)
		return
	case <-ctx.Done():
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeWithin)
	defer cancel()
	if server.Shutdown(bounded) != nil {
		_ = server.Close() // a client that does not end does not keep us
	}
	<-ended
}

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
		Pool: pool, Timeout: pageWithin, Logger: log,
		Explain: func(err error) (away bool, text string) { return isUnreachable(err), explained(err) },
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

// openPagesPool makes connections that only read, and not for long. A pooler lets no
// statement_timeout through, but pgx has Postgres end what nobody waits for any more.
func openPagesPool(ctx context.Context, cfg *config.Config) (*pgxpool.Pool, error) {
	settings := commandSettings()
	settings["default_transaction_read_only"] = "on"
	settings["statement_timeout"] = pageWithin.String()
	pc, err := poolConfig(cfg, settings, pageConns)
	if err != nil {
		return nil, err
	}
	pc.MaxConnIdleTime = time.Minute
	return pgxpool.NewWithConfig(ctx, pc)
}

// libraryLog passes to slog what libraries write to Go's standard logger: net/http reports there the
// answers that it did not ask for.
type libraryLog struct{ log *slog.Logger }

// standardTo makes the standard logger, one for the whole process, write to log.
func standardTo(to *slog.Logger) {
	log.SetFlags(0)
	log.SetOutput(libraryLog{to})
}

// Write takes one line of the standard logger. It leaves out what the line quotes, which may be an
// API's answer.
func (l libraryLog) Write(line []byte) (int, error) {
	said := regexp.MustCompile(`"(?:[^"\\]|\\.)*"?`).ReplaceAllString(string(bytes.TrimSpace(line)), "…")
	l.log.DebugContext(context.Background(), "library reported", "message", said)
	return len(line), nil
}
