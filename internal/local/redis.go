package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/redis/go-redis/v9"
)

// Redis says how to run a Redis.
type Redis struct {
	Dir      string            // where it keeps its data; default: a temporary folder that Stop removes
	Settings map[string]string // as in redis.conf; by default it keeps nothing over a restart
	Log      io.Writer         // receives what the server writes; default: nowhere
}

// RedisServer is a running Redis. Its methods may be called at any time.
type RedisServer struct {
	server
	socket string
}

// StartRedis starts Redis and returns when it answers, or fails after a minute. ctx bounds the start, not
// the server's life.
func StartRedis(ctx context.Context, cfg Redis) (*RedisServer, error) {
	s, err := newRedis(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("start redis: %w", err)
	}
	if err := s.start(ctx); err != nil {
		return nil, fmt.Errorf("start redis: %w", errors.Join(err, s.folder.close()))
	}
	return s, nil
}

func newRedis(ctx context.Context, cfg Redis) (*RedisServer, error) {
	p, err := FindRedis()
	if err != nil {
		return nil, err
	}
	f, err := openFolder(ctx, cfg.Dir)
	if err != nil {
		return nil, err
	}
	dir, err := f.forSocket(f.path, "redis.sock")
	if err != nil {
		return nil, errors.Join(err, f.close())
	}
	s := &RedisServer{socket: filepath.Join(dir, "redis.sock")}
	s.server = server{
		name: "redis", folder: f, log: cfg.Log, stopBy: syscall.SIGTERM, killBy: syscall.SIGKILL,
		command: func(ctx context.Context) *exec.Cmd { return s.redis(ctx, p, cfg.Settings) },
		ready:   s.ping,
	}
	return s, nil
}

func (s *RedisServer) redis(ctx context.Context, p Program, changes map[string]string) *exec.Cmd {
	settings := map[string]string{
		"port": "0", "unixsocket": s.socket, "unixsocketperm": "700", "dir": s.folder.path, "daemonize": "no",
		"logfile": "", "save": "", "appendonly": "no", "maxmemory-policy": "noeviction",
	}
	maps.Copy(settings, changes)
	var args []string
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		args = append(args, "--"+name, settings[name])
	}
	cmd := p.Command(ctx, p.Name, args...)
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
