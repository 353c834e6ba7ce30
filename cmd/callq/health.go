package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	"github.com/spf13/cobra"
)

func healthCommand(a *app) *cobra.Command {
	ready := false
	cmd := &cobra.Command{
		Use: "health", Short: "Ask the callq that runs here whether it is alive, for HEALTHCHECK",
		Long: "Ask the callq that runs on this machine, at http.listen, whether it is alive. With --ready, ask whether it\n" +
			"also reaches Postgres and Redis. Exit code 0 if so, 1 if not.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			path := "/livez"
			if ready {
				path = "/readyz"
			}
			return health(cmd.Context(), a, path)
		},
	}
	cmd.Flags().BoolVar(&ready, "ready", false, "ask /readyz")
	return cmd
}

func health(ctx context.Context, a *app, path string) error {
	cfg, err := a.loadConfig()
	if err != nil {
		return err
	}
	host, port, err := net.SplitHostPort(cfg.HTTP.Listen)
	if err != nil || port == "0" {
		return usagef("http.listen is %s, which nothing can be asked at: set an address with a port", cfg.HTTP.Listen)
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	url := "http://" + net.JoinHostPort(host, port) + path
	body, status, err := get(ctx, url)
	switch {
	case err != nil:
		return exitf(exitFailed, "no callq answers: %w", err)
	case status != http.StatusOK:
		return exitf(exitFailed, "%s answered %d: %s", url, status, body)
	}
	fmt.Fprintln(a.stdout, body)
	return nil
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
