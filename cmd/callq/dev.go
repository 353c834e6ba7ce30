package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/callq/callq/internal/local"
	"github.com/callq/callq/migrations"
)

func devCommand(a *app) *cobra.Command {
	dir := ""
	cmd := &cobra.Command{
		Use: "dev", Short: "Serve with a Postgres and a Redis of its own, for development",
		Long: "Start a Postgres and a Redis of its own, migrate, print how to reach them, and serve with the limits and\n" +
			"queues of the configuration until Ctrl-C. Their data is kept in --dir for the next time. To call local APIs,\n" +
			"set http_task.private_hosts or allow_private. Not for production.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return dev(cmd.Context(), a, dir) },
	}
	cmd.Flags().StringVar(&dir, "dir", "", "where the servers keep their data "+
		"(default: $XDG_DATA_HOME/callq/dev, ~/.local/share/callq/dev, or for root /var/lib/callq/dev)")
	return cmd
}

// devStack is what dev prints, and tells another dev that wants its folder.
type devStack struct {
	Dir      string `json:"dir"`
	Process  int    `json:"process"`
	Postgres string `json:"postgres_url"`
	Redis    string `json:"redis_url"`
}

func (s devStack) String() string {
	return fmt.Sprintf("export DATABASE_URL='%s'\nexport REDIS_URL='%s'\n", s.Postgres, s.Redis)
}

// dev is serve on servers of its own, which end with it.
func dev(ctx context.Context, a *app, dir string) (err error) {
	for path, url := range a.urls {
		if url.given {
			return usagef("callq dev has servers of its own: leave --%s out, or use callq serve",
				strings.ReplaceAll(path, ".", "-"))
		}
	}
	cfg, err := a.readConfig() // a mistake is said before anything is started
	if err != nil {
		return err
	}
	if dir, err = devFolder(a, dir); err != nil {
		return err
	}
	claim, says, err := local.Claim(dir)
	if errors.Is(err, local.ErrClaimed) {
		return fmt.Errorf("callq dev is running already in %s (%s); end it first, or give another folder with --dir",
			dir, oneLine(says))
	}
	if err != nil {
		return fmt.Errorf("take the folder: %w; give another with --dir", err)
	}
	defer func() { err = errors.Join(err, claim.Close()) }()
	stack := devStack{Dir: dir, Process: os.Getpid()}
	if err := note(claim, fmt.Sprintf("process %d", stack.Process)); err != nil {
		return fmt.Errorf("write to %s: %w", dir, err)
	}

	log := a.logger(cfg)
	postgres, err := local.StartPostgres(ctx, local.Postgres{Dir: filepath.Join(dir, "postgres")})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, postgres.Stop()) }()
	redis, stopRedis, err := local.StartAnyRedis(ctx, local.Redis{
		Dir: filepath.Join(dir, "redis"), Settings: map[string]string{"appendonly": "yes"},
	}, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stopRedis()) }()
	stack.Postgres, stack.Redis = postgres.URL("postgres"), redis
	if err := migrateOwn(ctx, stack.Postgres, log); err != nil {
		return err
	}

	if err := sayDev(a, claim, stack); err != nil {
		return err
	}
	// Over whatever the file and the environment say of servers: none but these is touched.
	a.urls["postgres.url"] = &urlFlag{given: true, text: stack.Postgres}
	a.urls["postgres.direct_url"] = &urlFlag{given: true, text: stack.Postgres}
	a.urls["redis.url"] = &urlFlag{given: true, text: stack.Redis}
	return a.daemon(ctx, roles{dispatcher: true, worker: true, mustListen: true, apply: true})
}

func note(claim *os.File, text string) error {
	_, err := claim.WriteAt([]byte(text), 0)
	return errors.Join(err, claim.Truncate(int64(len(text))))
}

func sayDev(a *app, claim *os.File, stack devStack) error {
	text := fmt.Sprintf("process %d, DATABASE_URL='%s', REDIS_URL='%s'", stack.Process, stack.Postgres, stack.Redis)
	if err := note(claim, text); err != nil {
		return fmt.Errorf("write to %s: %w", stack.Dir, err)
	}
	fmt.Fprintln(a.stderr,
		"callq: warning: for development, not for production: no passwords, no backups; the data is in", stack.Dir)
	if a.output != "table" {
		return a.printJSON(stack)
	}
	_, err := fmt.Fprint(a.stdout, stack)
	return err
}

// migrateOwn brings the schema up; a folder that a newer callq has used is refused.
func migrateOwn(ctx context.Context, url string, log *slog.Logger) error {
	conn, err := pgx.ParseConfig(url)
	if err != nil {
		return fmt.Errorf("read Postgres's URL: %w", err)
	}
	applied, err := migrations.Up(ctx, conn)
	for _, m := range applied {
		log.InfoContext(ctx, "migrated", "file", m.File)
	}
	if err != nil {
		return err
	}
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return fmt.Errorf("read Postgres's URL: %w", err)
	}
	defer pool.Close()
	return checkSchema(ctx, pool)
}

// devFolder is where dev keeps its data. Root's home is closed to the user that Postgres runs as.
func devFolder(a *app, dir string) (string, error) {
	if dir != "" {
		return filepath.Abs(dir)
	}
	home := a.variable("HOME")
	switch data := a.variable("XDG_DATA_HOME"); {
	case filepath.IsAbs(data):
		return filepath.Join(data, "callq", "dev"), nil
	case os.Geteuid() == 0:
		return "/var/lib/callq/dev", nil
	case filepath.IsAbs(home):
		return filepath.Join(home, ".local", "share", "callq", "dev"), nil
	}
	return "", usagef("there is no home to keep the data in: give a folder with --dir")
}
