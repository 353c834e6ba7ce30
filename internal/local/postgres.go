package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"

	"github.com/jackc/pgx/v5"
)

// Postgres says how to run a Postgres.
type Postgres struct {
	Dir      string            // kept by Stop; default: a temporary folder, removed by Stop
	Settings map[string]string // as in postgresql.conf; max_connections is 200 by default
	Files    map[string][]byte // put into the data folder, such as server.crt and server.key
	Clock    string            // a file with the seconds, such as +70.5, that the server's clock is off by; default: none
	Log      io.Writer         // what the server writes; default: nowhere
	Logger   *slog.Logger      // says when something is installed; default: slog.Default()
}

// PostgresServer is a Postgres of one's own. Its superuser is postgres, without a password; only
// this user (and root) can reach its socket. Methods may be called at any time.
type PostgresServer struct {
	cfg     Postgres
	program program
	as      identity
	data    string
	socket  string // its folder

	mu     sync.Mutex
	folder *folder // nil once stopped
	child  *child  // nil while none has been started
}

// StartPostgres makes a cluster if the folder has none (UTF8, locale C, fsync on), starts Postgres
// on it and returns when it takes connections; a server that does not within a minute is an error.
// ctx bounds the start, not the server's life.
func StartPostgres(ctx context.Context, cfg Postgres) (*PostgresServer, error) {
	s, err := newPostgres(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("start postgres: %w", err)
	}
	if err := s.start(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("start postgres: %w", err), s.folder.close())
	}
	return s, nil
}

func newPostgres(ctx context.Context, cfg Postgres) (*PostgresServer, error) {
	p, err := provide(ctx, postgresWanted(), cfg.Logger)
	if err != nil {
		return nil, err
	}
	if cfg.Clock != "" {
		env, err := fakeClock(ctx, cfg.Clock, cfg.Logger)
		if err != nil {
			return nil, err
		}
		p.env = append(p.env, env...)
	}
	f, err := openFolder(ctx, cfg.Dir)
	if err != nil {
		return nil, err
	}
	s := &PostgresServer{cfg: cfg, program: p, folder: f, data: filepath.Join(f.path, "data")}
	if err := s.prepare(ctx); err != nil {
		return nil, errors.Join(err, f.close())
	}
	return s, nil
}

// prepare makes the cluster, the user it runs as and the socket's folder.
func (s *PostgresServer) prepare(ctx context.Context) error {
	_, err := os.Stat(s.data)
	if errors.Is(err, fs.ErrNotExist) {
		err = s.initialise(ctx)
	} else if err == nil {
		s.as, err = chooseIdentity(ctx, s.program, s.data)
	}
	if err == nil {
		err = s.putFiles()
	}
	if err != nil {
		return err
	}
	s.socket = s.data
	if len(s.socket)+len("/.s.PGSQL.65535") > maxSocketPath {
		if s.socket, err = s.folder.temp(); err != nil {
			return err
		}
		return giveTo(s.as, s.socket)
	}
	return nil
}

// putFiles writes what the server alone may read.
func (s *PostgresServer) putFiles() error {
	for name, content := range s.cfg.Files {
		path := filepath.Join(s.data, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			return err
		}
		if err := os.Chown(path, s.as.uid, s.as.gid); err != nil {
			return err
		}
	}
	return nil
}

// initialise makes the cluster aside and renames it, so that one half made is never used.
func (s *PostgresServer) initialise(ctx context.Context) error {
	aside := s.data + ".new"
	if err := os.RemoveAll(aside); err != nil {
		return err
	}
	if err := os.Mkdir(aside, 0o700); err != nil {
		return err
	}
	id, err := chooseIdentity(ctx, s.program, aside)
	if err != nil {
		return err
	}
	s.as = id
	args := []string{"-D", aside, "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C"}
	if s.cfg.Settings["fsync"] == "off" {
		args = append(args, "--no-sync")
	}
	cmd := s.program.command(ctx, "initdb", args...)
	cmd.Dir = aside
	id.apply(cmd)
	c, err := startChild(cmd, syscall.SIGKILL, nil)
	if err != nil {
		return fmt.Errorf("initdb: %w", err)
	}
	if <-c.ended; c.err != nil {
		return fmt.Errorf("initdb: %w\n%s", c.err, c.lines)
	}
	return os.Rename(aside, s.data)
}

// start starts the server and waits until it takes connections. The caller holds mu, or has the
// server to itself.
func (s *PostgresServer) start(ctx context.Context) error {
	settings := map[string]string{
		"listen_addresses":        "",
		"port":                    s.port(), // names the socket, whatever PGPORT says
		"unix_socket_directories": s.socket,
		"unix_socket_permissions": "0700",
		"max_connections":         "200",
		"lc_messages":             "C",
	}
	maps.Copy(settings, s.cfg.Settings)
	args := []string{"-D", s.data}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		args = append(args, "-c", name+"="+settings[name])
	}
	cmd := s.program.command(context.WithoutCancel(ctx), "postgres", args...) // ctx is for the start only
	cmd.Dir = s.data
	cmd.ExtraFiles = []*os.File{s.folder.lock}
	s.as.apply(cmd)
	// SIGQUIT rather than SIGKILL: Postgres then gives its shared memory back.
	c, err := startChild(cmd, syscall.SIGQUIT, s.cfg.Log)
	if err != nil {
		return err
	}
	s.child = c
	return await(ctx, c, func(ctx context.Context) error {
		conn, err := pgx.Connect(ctx, s.URL("postgres"))
		if err != nil {
			return err
		}
		return conn.Close(ctx)
	})
}

// URL is the connection string of database db, for pgx and libpq alike.
func (s *PostgresServer) URL(db string) string {
	return fmt.Sprintf("postgres://postgres@/%s?host=%s&port=%s", escapePath(db), escapePath(s.socket), s.port())
}

func (s *PostgresServer) port() string { return cmp.Or(s.cfg.Settings["port"], "5432") }

// Pid is the server's process id; after a Restart it is another one.
func (s *PostgresServer) Pid() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.child.process.Pid
}

// Stop ends every session, writes everything to disk and stops (a fast shutdown). It then removes
// a temporary folder. Stopping twice is harmless.
func (s *PostgresServer) Stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.folder == nil {
		return nil
	}
	s.child.end(syscall.SIGINT, stopWithin)
	err := s.folder.close()
	s.folder = nil
	return err
}

// Kill stops as a crash does: nothing is written, and the next start recovers from the WAL.
// The folder stays: Restart starts it again, Stop gives it up.
func (s *PostgresServer) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.child.end(syscall.SIGQUIT, killWithin)
}

// Restart stops the server in order, unless Kill has stopped it, and starts it on the same data
// and socket.
func (s *PostgresServer) Restart(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.folder == nil {
		return fmt.Errorf("restart postgres: %w", errStopped)
	}
	s.child.end(syscall.SIGINT, stopWithin)
	if err := s.start(ctx); err != nil {
		return fmt.Errorf("restart postgres: %w", err)
	}
	return nil
}
