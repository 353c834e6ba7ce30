package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"github.com/jackc/pgx/v5"
)

// Postgres describes how to run a Postgres.
type Postgres struct {
	Dir      string            // where it keeps its data; default: a temporary folder that Stop removes
	Settings map[string]string // as in postgresql.conf; max_connections is 200 by default
	Env      []string          // variables of the server's environment, beside this process's
	Binaries string            // the folder of postgres and initdb; default: where FindPostgres finds them
	Log      io.Writer         // receives what the server writes; default: nowhere
}

// PostgresServer is a running Postgres. Its superuser is postgres, without a password; only this user and
// root reach its socket. Its methods may be called at any time.
type PostgresServer struct {
	server
	cfg     Postgres
	program Program
	as      identity
	data    string // the cluster's folder
	socket  string // the socket's folder
}

// StartPostgres makes a cluster if the folder has none (UTF8, locale C) and starts Postgres on it. It
// returns when Postgres takes connections, or fails after a minute. ctx bounds the start, not the server's
// life.
func StartPostgres(ctx context.Context, cfg Postgres) (*PostgresServer, error) {
	s := &PostgresServer{cfg: cfg}
	s.server = server{
		name: "postgres", log: cfg.Log, stopBy: syscall.SIGINT,
		killBy:  syscall.SIGQUIT, // rather than SIGKILL: Postgres then gives its shared memory back
		command: s.launch, ready: s.connect,
	}
	if err := s.open(ctx, cfg.Dir, s.prepare); err != nil {
		return nil, err
	}
	return s, nil
}

// prepare makes the cluster and the socket's folder, and chooses the user that Postgres runs as. The cluster is
// made under another name and renamed, so that half a cluster is never used.
func (s *PostgresServer) prepare(ctx context.Context) (err error) {
	s.program = Program{Dir: s.cfg.Binaries, Name: "postgres"}
	if s.cfg.Binaries == "" {
		if s.program, err = FindPostgres(); err != nil {
			return err
		}
	}
	s.program.Env = append(s.program.Env, s.cfg.Env...)
	s.data = filepath.Join(s.folder.path, "data")
	if _, err := os.Stat(s.data); errors.Is(err, fs.ErrNotExist) {
		aside := s.data + ".new"
		if err := errors.Join(os.RemoveAll(aside), os.Mkdir(aside, 0o700)); err != nil {
			return err
		}
		if s.as, err = chooseIdentity(ctx, s.program, aside); err != nil {
			return err
		}
		args := []string{"-D", aside, "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C"}
		if s.cfg.Settings["fsync"] == "off" {
			args = append(args, "--no-sync")
		}
		if out, err := s.as.command(ctx, s.program, aside, "initdb", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("initdb: %w\n%s", err, out)
		}
		if err := os.Rename(aside, s.data); err != nil {
			return err
		}
	} else if s.as, err = chooseIdentity(ctx, s.program, s.data); err != nil {
		return err
	}
	if s.socket, err = s.folder.forSocket(s.data, ".s.PGSQL.65535"); err != nil {
		return err
	}
	return s.as.own(s.socket)
}

func (s *PostgresServer) launch(ctx context.Context) *exec.Cmd {
	settings := map[string]string{
		"listen_addresses": "", "port": s.port(), // names the socket, whatever PGPORT is
		"unix_socket_directories": s.socket, "unix_socket_permissions": "0700",
		"max_connections": "200", "lc_messages": "C",
	}
	maps.Copy(settings, s.cfg.Settings)
	args := []string{"-D", s.data}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		args = append(args, "-c", name+"="+settings[name])
	}
	return s.as.command(ctx, s.program, s.data, "postgres", args...)
}

func (s *PostgresServer) connect(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, s.URL("postgres"))
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}

// URL is the address of the database db, for pgx and libpq.
func (s *PostgresServer) URL(db string) string {
	return fmt.Sprintf("postgres://postgres@/%s?host=%s&port=%s", escapePath(db), escapePath(s.socket), s.port())
}

func (s *PostgresServer) port() string { return cmp.Or(s.cfg.Settings["port"], "5432") }

// identity is a user that Postgres, which refuses to run as root, can run as.
type identity struct {
	name     string
	uid, gid int // who owns its files
	attr     syscall.SysProcAttr
}

// command is p.Command in dir, run as this user.
func (id identity) command(ctx context.Context, p Program, dir, binary string, args ...string) *exec.Cmd {
	cmd := p.Command(ctx, binary, args...)
	cmd.Dir, cmd.SysProcAttr = dir, &id.attr
	return cmd
}

// own makes this user the owner of dir and what is in it.
func (id identity) own(dir string) error {
	if os.Geteuid() != 0 { // it is this user's
		return nil
	}
	return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, id.uid, id.gid)
	})
}

// chooseIdentity gives dir to the first user who can work in it and run Postgres.
func chooseIdentity(ctx context.Context, p Program, dir string) (identity, error) {
	var tried []error
	for _, id := range identities() {
		err := id.own(dir)
		if err == nil {
			err = id.command(ctx, p, dir, "postgres", "--version").Run()
		}
		if err == nil {
			return id, nil
		}
		tried = append(tried, fmt.Errorf("as %s: %w", id.name, err))
	}
	return identity{}, fmt.Errorf("run in %s: %w", dir, errors.Join(tried...))
}

// identities lists the users to try, in order.
func identities() (list []identity) {
	if os.Geteuid() != 0 {
		return []identity{{name: "this user", uid: os.Geteuid(), gid: os.Getegid()}}
	}
	for _, name := range []string{"postgres", "nobody"} {
		found, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, _ := strconv.ParseUint(found.Uid, 10, 32) // numbers on every Unix
		gid, _ := strconv.ParseUint(found.Gid, 10, 32)
		as := &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		id := identity{name: name, uid: int(uid), gid: int(gid), attr: syscall.SysProcAttr{Credential: as}}
		list = append(list, id)
		if root, ok := inNamespace(id); ok && name == "nobody" {
			list = append(list, root)
		}
	}
	return list
}
