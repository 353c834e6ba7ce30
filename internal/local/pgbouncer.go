package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"
)

// PgBouncer says how to run a pgbouncer in front of a Postgres of one's own.
type PgBouncer struct {
	Postgres *PostgresServer
	Settings map[string]string // as in pgbouncer.ini; pool_mode is transaction by default
	Logger   *slog.Logger      // says when something is installed; default: slog.Default()
}

// PgBouncerServer is a running pgbouncer, on a unix socket.
type PgBouncerServer struct {
	folder *folder
	child  *child
}

func pgbouncerWanted() wanted {
	return wanted{
		name:     "pgbouncer",
		variable: "CALLQ_PGBOUNCER_BIN",
		binaries: [][]string{{"pgbouncer"}},
		folders:  []string{"/usr/sbin", "/usr/bin", "/usr/local/bin", "/opt/homebrew/bin", "/home/linuxbrew/.linuxbrew/bin"},
		packages: map[string][]string{
			"apt-get": {"pgbouncer"}, "dnf": {"pgbouncer"}, "apk": {"pgbouncer"}, "brew": {"pgbouncer"},
		},
		cache: cacheFolder(),
	}
}

// StartPgBouncer starts it, as the user that Postgres runs as, and returns when a connection through it
// answers. It is installed where it is missing. ctx bounds the start, not its life.
func StartPgBouncer(ctx context.Context, cfg PgBouncer) (*PgBouncerServer, error) {
	p, err := provide(ctx, pgbouncerWanted(), cfg.Logger)
	if err != nil {
		return nil, fmt.Errorf("start pgbouncer: %w", err)
	}
	f, err := openFolder(ctx, "")
	if err != nil {
		return nil, fmt.Errorf("start pgbouncer: %w", err)
	}
	s := &PgBouncerServer{folder: f}
	if err := s.start(ctx, p, cfg); err != nil {
		return nil, errors.Join(fmt.Errorf("start pgbouncer: %w", err), s.Stop())
	}
	return s, nil
}

func (s *PgBouncerServer) start(ctx context.Context, p program, cfg PgBouncer) error {
	settings := map[string]string{
		"listen_addr": "", "listen_port": "6432", "unix_socket_dir": s.folder.path, "unix_socket_mode": "0700",
		"auth_type": "trust", "auth_file": filepath.Join(s.folder.path, "users"),
		"pool_mode": "transaction", "max_client_conn": "500",
	}
	maps.Copy(settings, cfg.Settings)
	var ini strings.Builder
	fmt.Fprintf(&ini, "[databases]\n* = host='%s' port=%s\n[pgbouncer]\n", cfg.Postgres.socket, cfg.Postgres.port())
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&ini, "%s = %s\n", name, settings[name])
	}
	file := filepath.Join(s.folder.path, "pgbouncer.ini")
	if err := os.WriteFile(file, []byte(ini.String()), 0o600); err != nil {
		return err
	}
	if err := os.WriteFile(settings["auth_file"], []byte(`"postgres" ""`+"\n"), 0o600); err != nil {
		return err
	}
	if err := giveTo(cfg.Postgres.as, s.folder.path); err != nil {
		return err
	}
	cmd := p.command(context.WithoutCancel(ctx), "pgbouncer", file) // ctx is for the start only
	cmd.Dir = s.folder.path
	cmd.ExtraFiles = []*os.File{s.folder.lock}
	cfg.Postgres.as.apply(cmd)
	c, err := startChild(cmd, syscall.SIGKILL, nil)
	if err != nil {
		return err
	}
	s.child = c
	return await(ctx, c, func(ctx context.Context) error {
		conn, err := pgx.Connect(ctx, s.URL("postgres"))
		if err != nil {
			return err
		}
		return errors.Join(conn.Ping(ctx), conn.Close(ctx))
	})
}

// URL is the connection string of database db, through the pgbouncer.
func (s *PgBouncerServer) URL(db string) string {
	return fmt.Sprintf("postgres://postgres@/%s?host=%s&port=6432", escapePath(db), escapePath(s.folder.path))
}

// Stop ends it and every connection, and removes its folder.
func (s *PgBouncerServer) Stop() error {
	if s.child != nil {
		s.child.end(syscall.SIGTERM, killWithin)
	}
	return s.folder.close()
}
