package local

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// Redis describes how to run a Redis.
type Redis struct {
	Dir      string            // where it keeps its data; default: a temporary folder that Stop removes
	Settings map[string]string // as in redis.conf; by default it keeps nothing over a restart
	Log      io.Writer         // receives what the server writes; default: nowhere
}

// RedisServer is a running Redis. Its methods may be called at any time.
type RedisServer struct {
	server
	cfg     Redis
	program Program
	socket  string
}

// StartRedis starts Redis and returns when it answers, or fails after a minute. ctx bounds the start, not
// the server's life.
func StartRedis(ctx context.Context, cfg Redis) (*RedisServer, error) {
	s := &RedisServer{cfg: cfg}
	s.server = server{
		name: "redis", log: cfg.Log, stopBy: syscall.SIGTERM, killBy: syscall.SIGKILL, command: s.launch, ready: s.ping,
	}
	if err := s.open(ctx, cfg.Dir, s.prepare); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *RedisServer) prepare(context.Context) (err error) {
	if s.program, err = FindRedis(); err != nil {
		return err
	}
	dir, err := s.folder.forSocket(s.folder.path, "redis.sock")
	s.socket = filepath.Join(dir, "redis.sock")
	return err
}

func (s *RedisServer) launch(ctx context.Context) *exec.Cmd {
	settings := map[string]string{
		"port": "0", "unixsocket": s.socket, "unixsocketperm": "700", "dir": s.folder.path, "daemonize": "no",
		"logfile": "", "save": "", "appendonly": "no", "maxmemory-policy": "noeviction",
	}
	maps.Copy(settings, s.cfg.Settings)
	var args []string
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		args = append(args, "--"+name, settings[name])
	}
	cmd := s.program.Command(ctx, s.program.Name, args...)
	cmd.Dir = s.folder.path
	return cmd
}

func (s *RedisServer) ping(ctx context.Context) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", s.socket) // go-redis would log that it cannot
	if err != nil {
		return err
	}
	client := redis.NewClient(&redis.Options{Network: "unix", Addr: s.socket, MaxRetries: -1})
	return errors.Join(conn.Close(), client.Ping(ctx).Err(), client.Close())
}

// URL is the server's address for redis.ParseURL: unix:///path.
func (s *RedisServer) URL() string { return "unix://" + escapePath(s.socket) }

// StartAnyRedis starts Redis or, where none is installed, miniredis inside this process, with a warning in
// the log. It returns the URL and a function that stops the server.
func StartAnyRedis(ctx context.Context, cfg Redis, log *slog.Logger) (url string, stop func() error, err error) {
	server, err := StartRedis(ctx, cfg)
	switch {
	case err == nil:
		return server.URL(), server.Stop, nil
	case !errors.Is(err, ErrMissing):
		return "", nil, err
	}
	log.WarnContext(ctx, "redis-server not found: a simulation stands in")
	return startEmbedded()
}

// startEmbedded starts a miniredis on a port of the loopback interface. Every user of the machine can reach
// that, so it asks for a password.
func startEmbedded() (url string, stop func() error, err error) {
	secret, server := rand.Text(), miniredis.NewMiniRedis()
	server.RequireAuth(secret)
	if err := server.StartAddr("127.0.0.1:0"); err != nil {
		return "", nil, fmt.Errorf("start miniredis: %w", err)
	}
	stopped := make(chan struct{})
	go func() { // miniredis has no clock: without this no key expires
		for last := time.Now(); ; {
			select {
			case <-stopped:
				return
			case now := <-time.After(100 * time.Millisecond):
				server.FastForward(now.Sub(last))
				last = now
			}
		}
	}()
	return "redis://:" + secret + "@" + server.Addr(), func() error {
		close(stopped)
		server.Close()
		return nil
	}, nil
}
