package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/callq/callq/internal/local"
	"github.com/callq/callq/verification/npmpostgres"
)

// database is a Postgres that is also reached at a port.
type database struct {
	*local.PostgresServer
	port string
}

func (d *database) url() string { return "postgres://postgres@127.0.0.1:" + d.port + "/postgres" }

// postgres starts a Postgres of npm's version, or else the installed one.
func (on *stage) postgres(ctx context.Context, version string) (*database, error) {
	cfg := local.Postgres{}
	if version != "" {
		var err error
		if cfg.Binaries, err = npmpostgres.Install(ctx, version); err != nil {
			return nil, err
		}
	}
	return on.postgresWith(ctx, cfg)
}

// postgresWith starts a Postgres with settings, each as name=value.
func (on *stage) postgresWith(ctx context.Context, cfg local.Postgres, settings ...string) (*database, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	cfg.Settings = map[string]string{"listen_addresses": "127.0.0.1", "port": port}
	for _, setting := range settings {
		name, value, _ := strings.Cut(setting, "=")
		cfg.Settings[name] = value
	}
	server, err := local.StartPostgres(ctx, cfg)
	if err != nil {
		return nil, err
	}
	on.later(func() { _ = server.Stop() })
	return &database{server, port}, nil
}

// postgresOf is one Postgres that crashes and comes back.
func postgresOf(version string) func(context.Context, *stage) (*servers, error) {
	return func(ctx context.Context, on *stage) (*servers, error) {
		postgres, err := on.postgres(ctx, version)
		if err != nil {
			return nil, err
		}
		return on.withRedis(ctx, postgres, func(ctx context.Context, _ *world) error {
			postgres.Kill()
			return postgres.Restart(ctx)
		})
	}
}

// withRedis are the servers of a set-up with this Postgres and any Redis.
func (on *stage) withRedis(ctx context.Context, postgres *database, fault func(context.Context, *world) error) (*servers, error) {
	redis, err := local.StartRedis(ctx, local.Redis{})
	if err != nil {
		return nil, err
	}
	on.later(func() { _ = redis.Stop() })
	return &servers{
		postgres: fmt.Sprintf("{url: %q}", postgres.url()), admin: postgres.url(),
		redis: fmt.Sprintf("{url: %q}", redis.URL()), fault: fault,
	}, nil
}

// pair starts a primary and its standby. What is acknowledged is on both if it is synchronous.
func (on *stage) pair(ctx context.Context, synchronous bool, standbySettings ...string) (primary, standby *database, err error) {
	if primary, err = on.postgres(ctx, ""); err != nil {
		return nil, nil, err
	}
	program, err := local.Find("postgres", []string{"postgres", "pg_basebackup"})
	if err != nil {
		return nil, nil, err
	}
	dir := filepath.Join(on.dir, "standby")
	backup := program.Command(ctx, "pg_basebackup", "-d", primary.url(), "-D", filepath.Join(dir, "data"), "-R", "-c", "fast", "--no-sync")
	if out, err := backup.CombinedOutput(); err != nil {
		return nil, nil, fmt.Errorf("pg_basebackup: %w\n%s", err, out)
	}
	if standby, err = on.postgresWith(ctx, local.Postgres{Dir: dir}, standbySettings...); err != nil {
		return nil, nil, err
	}
	err = until(ctx, "the standby streams", func() error {
		return one(ctx, primary.url(), `SELECT count(*) = 1 FROM pg_stat_replication WHERE state = 'streaming'`)
	})
	if err == nil && synchronous {
		err = statements(ctx, primary.url(), `ALTER SYSTEM SET synchronous_standby_names = '*'`, `SELECT pg_reload_conf()`)
	}
	return primary, standby, err
}

// one is nil if a statement's only value is true.
func one(ctx context.Context, url, sql string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	var is bool
	if err := conn.QueryRow(ctx, sql).Scan(&is); err != nil {
		return err
	}
	if !is {
		return errors.New("not so: " + sql)
	}
	return nil
}

func statements(ctx context.Context, url string, list ...string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	for _, sql := range list {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return nil
}

// primaryOf is the address of whichever of them is the primary.
func primaryOf(list ...string) string {
	return "postgres://postgres@" + strings.Join(list, ",") + "/postgres?target_session_attrs=read-write&connect_timeout=3"
}

// promotedStandby is a primary that dies, and its synchronous standby, which is promoted.
func promotedStandby(ctx context.Context, on *stage) (*servers, error) {
	primary, standby, err := on.pair(ctx, true)
	if err != nil {
		return nil, err
	}
	s, err := on.withRedis(ctx, primary, func(ctx context.Context, _ *world) error {
		primary.Kill()
		return one(ctx, standby.url(), `SELECT pg_promote()`)
	})
	if err != nil {
		return nil, err
	}
	s.admin = primaryOf("127.0.0.1:"+primary.port, "127.0.0.1:"+standby.port)
	s.postgres, s.failsOver = fmt.Sprintf("{url: %q}", s.admin), true
	return s, nil
}

// hotStandby has callq read at a hot standby, while the primary has two processes.
func hotStandby(ctx context.Context, on *stage) (string, error) {
	primary, standby, err := on.pair(ctx, false)
	if err != nil {
		return "", err
	}
	s, err := on.withRedis(ctx, primary, nil)
	if err != nil {
		return "", err
	}
	w, err := newWorld(ctx, on, s)
	if err != nil {
		return "", err
	}
	saw, err := w.load(ctx)
	if err != nil {
		return saw, err
	}
	later, err := w.command(ctx, 0, "enqueue", "--in", "1h", "--data", fmt.Sprintf(`{"url": %q}`, w.api.URL()))
	if err != nil {
		return "", err
	}
	later = strings.TrimSpace(later)
	err = until(ctx, "the standby has replayed it", func() error {
		return one(ctx, standby.url(), `SELECT count(*) = 1 FROM call_queue WHERE id = `+later)
	})
	if err != nil {
		return "", err
	}
	for _, command := range []string{
		"status", "limits list", "queues list", "calls list", "calls why " + later, "calls get " + later, "verify", "migrate status",
	} {
		out, err := w.command(ctx, 0, append([]string{"--postgres-url", standby.url()}, strings.Fields(command)...)...)
		if err != nil {
			return "", err
		}
		if command == "status" && !strings.Contains(out, "standby") {
			return "", fmt.Errorf("status does not say that it is a standby:\n%s", out)
		}
	}
	return "all that only reads works there", nil
}
