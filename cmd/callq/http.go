package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/callq/callq/internal/access"
	"github.com/callq/callq/internal/actions"
	"github.com/callq/callq/internal/admin"
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
	server := &http.Server{ // main silences its own log
		Handler: handler, ReadHeaderTimeout: headersWithin,
		BaseContext: func(net.Listener) context.Context { return ctx }, // pages that are watched end with it
	}
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
	guard, err := openGuard(cfg, address, log)
	if err != nil {
		return nil, nil, err
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
	acting, err := openPool(ctx, cfg, commandSettings(), pageConns)
	if err != nil {
		pool.Close()
		return nil, nil, err
	}
	closeBoth := func() {
		closePool(pool, log)
		closePool(acting, log)
	}
	actor, err := newClient(cfg, acting)
	if err != nil {
		closeBoth()
		return nil, nil, err
	}
	handler, err := console.New(console.Config{
		Pool: schemas(cfg).In(pool), Client: client, Timeout: pageWithin, Logger: log, Guard: guard,
		AskBudgets: func(ctx context.Context, budgets []admin.Budget) { readBudgets(ctx, cfg, budgets) },
		Actions:    &actions.Actions{Pool: schemas(cfg).In(acting), Client: actor},
		Explain:    func(err error) (away bool, text string) { return isUnreachable(err), explained(err) },
	})
	if err != nil {
		closeBoth()
		return nil, nil, err
	}
	return handler, closeBoth, nil
}

// openGuard tells who may see the pages at this address, and act. Where others could come in and nobody logs in, it is an error.
func openGuard(cfg *config.Config, address net.Addr, log *slog.Logger) (*access.Guard, error) {
	auth := cfg.HTTP.Auth
	gc := access.Config{
		Users: auth.Users, Hosts: cfg.HTTP.Hosts, Logger: log,
		Proxy: access.Proxy{Header: auth.Proxy.Header, Roles: map[string]access.Role{}},
		Open:  access.Who{Name: "loopback", Role: access.Viewer},
	}
	if cfg.HTTP.Actions {
		gc.Open.Role = access.Admin
	}
	values, err := cfg.TokenValues()
	if err != nil {
		return nil, err
	}
	for name, t := range auth.Tokens {
		role, _ := access.ParseRole(t.Role) // it was checked
		gc.Tokens = append(gc.Tokens, access.Token{Name: name, Value: values[name], Role: role})
	}
	for _, text := range auth.Proxy.From {
		prefix, err := netip.ParsePrefix(text)
		if err != nil { // an address, which was checked
			prefix, err = netip.MustParseAddr(text).Prefix(netip.MustParseAddr(text).BitLen())
		}
		if err != nil {
			return nil, usagef("http.auth.proxy.from: %w", err)
		}
		gc.Proxy.From = append(gc.Proxy.From, prefix.Masked())
	}
	for user, name := range auth.Proxy.Roles {
		gc.Proxy.Roles[user], _ = access.ParseRole(name) // likewise
	}
	guard, err := access.New(gc)
	if err != nil {
		return nil, usagef("http.auth: %w", err)
	}
	if tcp, ok := address.(*net.TCPAddr); (!ok || !tcp.IP.IsLoopback()) && !guard.Closed() {
		return nil, usagef("http.listen: %s: %w: %s", address, config.ErrOpen, config.OpenFix)
	}
	return guard, nil
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
