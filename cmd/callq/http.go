package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/callq/callq/internal/config"
	"github.com/callq/callq/internal/console"
)

const (
	headersWithin = 5 * time.Second
	pageWithin    = 5 * time.Second
	pageConns     = 2 // beside those of the parts; made for the first page
)

// listen opens the http listener; nil: there is none. An address in use is an error for serve only, which must
// listen.
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
	server := &http.Server{Handler: handler, ReadHeaderTimeout: headersWithin} // main silences its own log
	go func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			log.ErrorContext(ctx, "http no longer served", "err", err)
		}
	}()
	<-ctx.Done()
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeWithin)
	defer cancel()
	if server.Shutdown(bounded) != nil {
		_ = server.Close() // a client that does not end does not keep us
	}
}

// openPagesPool makes connections that only read, and not for long. A pooler lets no statement_timeout through, but
// pgx has Postgres end what is no longer waited for.
func openPagesPool(ctx context.Context, cfg *config.Config) (*pgxpool.Pool, error) {
	settings := commandSettings()
	settings["default_transaction_read_only"] = "on"
	settings["statement_timeout"] = pageWithin.String()
	return openPool(ctx, cfg, settings, pageConns)
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
	client, err := newClient(cfg, pool)
	if err != nil {
		pool.Close()
		return nil, nil, err
	}
	handler, err := console.New(console.Config{
		Pool: schemas(cfg).In(pool), Client: client, Timeout: pageWithin, Logger: log,
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

func healthCommand(a *app) *cobra.Command {
	ready := false
	cmd := &cobra.Command{
		Use: "health", Short: "Ask the callq that runs here whether it is alive, for HEALTHCHECK",
		Long: "Ask the callq that runs on this machine, at http.listen, whether it is alive. With --ready, ask whether it\n" +
			"also reaches Postgres and Redis. Exit code 0 if so, 1 if not.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := a.loadConfig()
			if err != nil {
				return err
			}
			if _, port, err := net.SplitHostPort(cfg.HTTP.Listen); err != nil || port == "0" {
				return usagef("http.listen is %s, which nothing can be asked at: set an address with a port", cfg.HTTP.Listen)
			}
			url := "http://" + cfg.HTTP.Listen + "/livez" // to net.Dial, every interface is this machine
			if ready {
				url = "http://" + cfg.HTTP.Listen + "/readyz"
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), a.timeout)
			defer cancel()
			body, status, err := get(ctx, url)
			switch {
			case err != nil:
				return exitf(exitFailed, "no callq answers: %w", err)
			case status != http.StatusOK:
				return exitf(exitFailed, "%s answered %d: %s", url, status, body)
			}
			fmt.Fprintln(a.stdout, body)
			return nil
		},
	}
	cmd.Flags().BoolVar(&ready, "ready", false, "ask /readyz")
	return cmd
}

// get asks past any proxy that the environment names.
func get(ctx context.Context, url string) (body string, status int, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", 0, err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return "", 0, err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(io.LimitReader(response.Body, 64<<10))
	return strings.TrimSpace(string(data)), response.StatusCode, err
}
