//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

func (v *victim) killRedis() (func() error, error) {
	v.s.redis.Kill()
	return func() error { return v.s.redis.Restart(context.Background()) }, nil
}

func (v *victim) flushRedis() (func() error, error) {
	return func() error { return nil }, v.s.redisClient.FlushAll(context.Background()).Err()
}

// flushRedis empties Redis.
func (s *stack) flushRedis() {
	s.t.Helper()
	if err := s.redisClient.FlushAll(context.Background()).Err(); err != nil {
		s.t.Error(err)
	}
}

func (v *victim) freezeRedis() (func() error, error) {
	pid := v.s.redis.Pid()
	return func() error { return syscall.Kill(pid, syscall.SIGCONT) }, syscall.Kill(pid, syscall.SIGSTOP)
}

func (v *victim) quitPostgres() (func() error, error) {
	v.s.postgres.Kill()
	return v.restartPostgres, nil
}

// killPostgres kills the server and its backends, which are process groups of their own: it is
// stopped first, so that it neither forks nor cleans up meanwhile.
func (v *victim) killPostgres() (func() error, error) {
	pid := v.s.postgres.Pid()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return nil, err
	}
	children, err := childrenOf(pid)
	if err != nil {
		return nil, errors.Join(err, syscall.Kill(pid, syscall.SIGCONT))
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return nil, err
	}
	for _, child := range children {
		if err := syscall.Kill(child, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return nil, err
		}
	}
	return v.restartPostgres, nil
}

// stopPostgres stops it in order.
func (v *victim) stopPostgres() (func() error, error) {
	return v.restartPostgres, syscall.Kill(v.s.postgres.Pid(), syscall.SIGINT)
}

// switchOver stops it in order and has what comes back be promoted, as a standby is: nothing is lost, and another epoch begins.
func (v *victim) switchOver() (func() error, error) {
	undo := func() error {
		if err := os.WriteFile(filepath.Join(v.s.postgresDir, "data", "standby.signal"), nil, 0o644); err != nil {
			return err
		}
		if err := v.restartPostgres(); err != nil {
			return err
		}
		conn, err := pgx.Connect(context.Background(), v.s.postgres.URL("postgres"))
		if err != nil {
			return err
		}
		defer conn.Close(context.Background())
		var promoted bool
		if err := conn.QueryRow(context.Background(), `SELECT pg_promote()`).Scan(&promoted); err != nil || !promoted {
			return errors.Join(errors.New("it is not promoted"), err)
		}
		return nil
	}
	return undo, syscall.Kill(v.s.postgres.Pid(), syscall.SIGINT)
}

// restartPostgres tries again while what was killed still holds the shared memory.
func (v *victim) restartPostgres() error {
	deadline := time.Now().Add(time.Minute)
	for {
		err := v.s.postgres.Restart(context.Background())
		if err == nil || time.Now().After(deadline) {
			return err
		}
		<-time.After(100 * time.Millisecond)
	}
}

// childrenOf reads which processes a process has forked.
func childrenOf(pid int) ([]int, error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	var children []int
	for _, path := range stats {
		data, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		// pid (name) state ppid …, where the name may hold anything.
		fields := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:])
		if len(fields) < 2 || string(fields[1]) != strconv.Itoa(pid) {
			continue
		}
		child, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			return nil, err
		}
		children = append(children, child)
	}
	return children, nil
}
