package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"

	"github.com/redis/go-redis/v9"
)

// Redis says how to run a Redis.
type Redis struct {
	Dir      string            // kept by Stop; default: a temporary folder, removed by Stop
	Settings map[string]string // as in redis.conf; no persistence, maxmemory-policy noeviction by default
	Install  bool              // install redis-server where it is missing, rather than stand in for it
	Log      io.Writer         // what the server writes; default: nowhere
	Logger   *slog.Logger      // says what is installed or stands in; default: slog.Default()
}

// RedisServer is a Redis of one's own. Methods may be called at any time.
type RedisServer struct {
	// Embedded: redis-server is not installed, and a simulation inside this process stands in.
	// It listens on a free port of the loopback interface and ends with the process.
	Embedded bool

	cfg     Redis
	program program
	path    string // of the socket

	mu       sync.Mutex
	url      string
	embedded *embedded
	folder   *folder // nil once stopped
	child    *child  // nil while none has been started
}

// StartRedis starts Redis and returns when it answers; one that does not within a minute is an
// error. ctx bounds the start, not the server's life.
func StartRedis(ctx context.Context, cfg Redis) (*RedisServer, error) {
	s, err := newRedis(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("start redis: %w", err)
	}
	if err := s.start(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("start redis: %w", err), s.close())
	}
	return s, nil
}

func newRedis(ctx context.Context, cfg Redis) (*RedisServer, error) {
	find := provide
	if !cfg.Install {
		find = func(_ context.Context, w wanted, _ *slog.Logger) (program, error) { return w.find() }
	}
	p, err := find(ctx, redisWanted(), cfg.Logger)
	if errors.Is(err, errMissing) && !cfg.Install {
		logger(cfg.Logger).WarnContext(ctx, "redis-server not found: a simulation stands in")
		return &RedisServer{Embedded: true, embedded: newEmbedded(), cfg: cfg}, nil
	}
	if err != nil {
		return nil, err
	}
	f, err := openFolder(ctx, cfg.Dir)
	if err != nil {
		return nil, err
	}
	s := &RedisServer{cfg: cfg, program: p, folder: f, path: filepath.Join(f.path, "redis.sock")}
	if len(s.path) > maxSocketPath {
		dir, err := f.temp()
		if err != nil {
			return nil, errors.Join(err, f.close())
		}
		s.path = filepath.Join(dir, "redis.sock")
	}
	s.url = "unix://" + escapePath(s.path)
	return s, nil
}

// start starts the server and waits until it answers. The caller holds mu, or has the server to
// itself.
func (s *RedisServer) start(ctx context.Context) error {
	if s.Embedded {
		url, err := s.embedded.start()
		s.url = url
		return err
	}
	settings := map[string]string{
		"port":             "0",
		"unixsocket":       s.path,
		"unixsocketperm":   "700",
		"dir":              s.folder.path,
		"daemonize":        "no",
		"logfile":          "",
		"save":             "",
		"appendonly":       "no",
		"maxmemory-policy": "noeviction",
	}
	maps.Copy(settings, s.cfg.Settings)
	var args []string
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		args = append(args, "--"+name, settings[name])
	}
	cmd := s.program.command(context.WithoutCancel(ctx), s.program.first, args...) // ctx is for the start only
	cmd.Dir = s.folder.path
	cmd.ExtraFiles = []*os.File{s.folder.lock}
	c, err := startChild(cmd, syscall.SIGKILL, s.cfg.Log)
	if err != nil {
		return err
	}
	s.child = c
	client := redis.NewClient(&redis.Options{Network: "unix", Addr: s.path, MaxRetries: -1})
	return errors.Join(await(ctx, c, func(ctx context.Context) error {
		return client.Ping(ctx).Err()
	}), client.Close())
}

// URL is what redis.ParseURL takes: unix:///path, or redis://:password@host:port when embedded.
func (s *RedisServer) URL() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.url
}

// Pid is the server's process id, 0 when embedded; after a Restart it is another one.
func (s *RedisServer) Pid() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Embedded {
		return 0
	}
	return s.child.process.Pid
}

// Stop stops the server and removes a temporary folder. Stopping twice is harmless.
func (s *RedisServer) Stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end(syscall.SIGTERM)
	return s.close()
}

// Kill stops as a crash does. Restart starts the server again, Stop gives its folder up.
func (s *RedisServer) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end(syscall.SIGKILL)
}

// Restart stops the server, unless Kill has stopped it, and starts it again under the same URL;
// what it held is gone unless Settings say otherwise.
func (s *RedisServer) Restart(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.folder == nil && !s.Embedded {
		return fmt.Errorf("restart redis: %w", errStopped)
	}
	s.end(syscall.SIGTERM)
	if err := s.start(ctx); err != nil {
		return fmt.Errorf("restart redis: %w", err)
	}
	return nil
}

func (s *RedisServer) end(sig syscall.Signal) {
	if s.Embedded {
		s.embedded.stop()
		return
	}
	s.child.end(sig, killWithin)
}

func (s *RedisServer) close() error {
	if s.folder == nil {
		return nil
	}
	err := s.folder.close()
	s.folder = nil
	return err
}
