package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/callq/callq/internal/local"
	"github.com/callq/callq/internal/schema"
	"github.com/callq/callq/migrations"
)

func devCommand(a *app) *cobra.Command {
	dir := ""
	cmd := &cobra.Command{
		Use: "dev", Short: "Serve with a Postgres and a Redis of its own, for development",
		Long: "Start a Postgres and a Redis of its own, migrate, print how to reach them, and serve with the limits and\n" +
			"queues of the configuration until Ctrl-C. Their data is kept in --dir for the next time. To call local APIs,\n" +
			"set http_task.private_hosts or allow_private. Not for production.",
		RunE: func(cmd *cobra.Command, _ []string) error { return a.dev(cmd.Context(), dir) },
	}
	cmd.Flags().StringVar(&dir, "dir", "", "where the servers keep their data "+
		"(default: $XDG_DATA_HOME/callq/dev, ~/.local/share/callq/dev, or for root /var/lib/callq/dev)")
	return cmd
}

// dev is serve on servers of its own, which end with it.
func (a *app) dev(ctx context.Context, dir string) (err error) {
	for path := range a.urls {
		return usagef("callq dev has servers of its own: leave --%s out, or use callq serve", strings.ReplaceAll(path, ".", "-"))
	}
	cfg, err := a.loadConfig() // a mistake is said before anything is started
	if err != nil {
		return err
	}
	if dir, err = devFolder(a, dir); err != nil {
		return err
	}
	servers, err := startOwn(ctx, local.Postgres{Dir: filepath.Join(dir, "postgres")}, local.Redis{
		Dir: filepath.Join(dir, "redis"), Settings: map[string]string{"appendonly": "yes"},
	}, a.logger(cfg))
	if err != nil && !errors.Is(err, local.ErrMissing) {
		err = fmt.Errorf("%w; give another folder than %s with --dir", err, dir)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, servers.stop()) }()
	fmt.Fprintln(a.stderr, "callq: warning: for development, not for production: no passwords, no backups; the data is in", dir)
	if err := a.show(servers, func(w io.Writer) {
		fmt.Fprintf(w, "export DATABASE_URL='%s'\nexport REDIS_URL='%s'\n", servers.Postgres, servers.Redis)
	}); err != nil {
		return err
	}
	// Over whatever the file and the environment say of servers: none but these is touched.
	a.urls = map[string]string{"postgres.url": servers.Postgres, "postgres.direct_url": servers.Postgres, "redis.url": servers.Redis}
	return a.daemon(ctx, roles{dispatcher: true, worker: true, apply: true})
}

// devFolder is where dev keeps its data. Root's home is closed to the user that Postgres runs as.
func devFolder(a *app, dir string) (string, error) {
	if dir != "" {
		return filepath.Abs(dir)
	}
	home := a.env["HOME"]
	switch data := a.env["XDG_DATA_HOME"]; {
	case filepath.IsAbs(data):
		return filepath.Join(data, "callq", "dev"), nil
	case os.Geteuid() == 0:
		return "/var/lib/callq/dev", nil
	case filepath.IsAbs(home):
		return filepath.Join(home, ".local", "share", "callq", "dev"), nil
	}
	return "", usagef("there is no home to keep the data in: give a folder with --dir")
}

// ownServers are a Postgres, with callq's schema, and a Redis of this process's own.
type ownServers struct {
	Postgres string `json:"postgres_url"`
	Redis    string `json:"redis_url"`
	stop     func() error
}

func startOwn(ctx context.Context, pg local.Postgres, rd local.Redis, log *slog.Logger) (*ownServers, error) {
	postgres, err := local.StartPostgres(ctx, pg)
	if err != nil {
		return nil, err
	}
	redis, stopRedis, err := local.StartAnyRedis(ctx, rd, log)
	if err != nil {
		return nil, errors.Join(err, postgres.Stop())
	}
	own := &ownServers{
		Postgres: postgres.URL("postgres"), Redis: redis,
		stop: func() error { return errors.Join(stopRedis(), postgres.Stop()) },
	}
	cfg, err := pgx.ParseConfig(own.Postgres)
	if err == nil {
		_, err = migrations.Up(ctx, cfg, schema.Names{})
	}
	if err != nil {
		return nil, errors.Join(err, own.stop())
	}
	return own, nil
}
