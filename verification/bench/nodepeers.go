package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// nodeSystem is a peer in a process of node/bench.mjs, which says what the commands mean. Its loops run there, so that
// a call crosses no pipe. Here the job table is asked.
type nodeSystem struct {
	pool     *pgxpool.Pool
	cmd      *exec.Cmd
	commands io.WriteCloser
	answers  *bufio.Scanner
	done     string // SQL: whether no job is left
	left     string // SQL: how many jobs are not completed
	inserted int
}

// graphile-worker deletes what is completed.
func openGraphile(ctx context.Context, databaseURL, _ string) (system, error) {
	return openNode(ctx, "graphile-worker", databaseURL, nodeSystem{
		done: `SELECT NOT EXISTS (SELECT FROM graphile_worker._private_jobs)`,
		left: `SELECT count(*) FROM graphile_worker._private_jobs`,
	})
}

func openPgBoss(ctx context.Context, databaseURL, _ string) (system, error) {
	return openNode(ctx, "pg-boss", databaseURL, nodeSystem{
		done: `SELECT NOT EXISTS (SELECT FROM pgboss.job WHERE name = 'noop' AND state <> 'completed')`,
		left: `SELECT count(*) FROM pgboss.job WHERE name = 'noop' AND state <> 'completed'`,
	})
}

func openNode(ctx context.Context, name, databaseURL string, s nodeSystem) (system, error) {
	if err := s.open(ctx, name, databaseURL); err != nil {
		s.close()
		return nil, err
	}
	return &s, nil
}

// open starts the process. It gets the program as text and finds modules from its working folder, so nothing of ours need
// lie there.
func (s *nodeSystem) open(ctx context.Context, name, databaseURL string) (err error) {
	if s.pool, err = openPool(ctx, databaseURL, nil); err != nil {
		return err
	}
	folder, err := nodeFolder()
	if err != nil {
		return err
	}
	node, err := findNode(ctx, folder)
	if err != nil {
		return err
	}
	program, err := nodeFiles.ReadFile("node/bench.mjs")
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, node, "--input-type=module", "--eval", string(program), "--", name, databaseURL)
	cmd.Dir, cmd.Stderr = folder, os.Stderr
	if s.commands, err = cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	s.answers = bufio.NewScanner(out)
	if err := cmd.Start(); err != nil {
		return err
	}
	s.cmd = cmd
	_, err = s.answer()
	return err
}

func (s *nodeSystem) pid() int { return s.cmd.Process.Pid }

func (s *nodeSystem) close() {
	if s.cmd != nil {
		_ = s.commands.Close()
		kill := time.AfterFunc(stopWithin, func() { _ = s.cmd.Process.Kill() })
		_ = s.cmd.Wait() // what it has done is checked
		kill.Stop()
	}
	if s.pool != nil {
		s.pool.Close()
	}
}

// send writes a command.
func (s *nodeSystem) send(words ...any) error {
	_, err := fmt.Fprintln(s.commands, words...)
	return err
}

func (s *nodeSystem) answer() (string, error) {
	if s.answers.Scan() {
		return s.answers.Text(), nil
	}
	if err := s.answers.Err(); err != nil {
		return "", err
	}
	return "", errors.New("node ended; what it said stands above")
}

func (s *nodeSystem) ask(words ...any) (string, error) {
	if err := s.send(words...); err != nil {
		return "", err
	}
	return s.answer()
}

func (s *nodeSystem) insertSingles(_ context.Context, n int) error {
	_, err := s.ask("singles", n, producers)
	return err
}

func (s *nodeSystem) insertBulk(_ context.Context, n int) error {
	s.inserted = n
	_, err := s.ask("bulk", n)
	return err
}

func (s *nodeSystem) vacuum(ctx context.Context) error {
	_, err := s.pool.Exec(ctx, "VACUUM ANALYZE")
	return err
}

// start passes on that calls were handled, all at once when the last one was. What is handled after that, twice then,
// is told by stop.
func (s *nodeSystem) start(_ context.Context, handled func()) (stop func() error, err error) {
	if err := s.send("start", s.inserted); err != nil {
		return nil, err
	}
	told := 0
	tell := func(answer string) error {
		n, err := strconv.Atoi(strings.TrimSpace(answer))
		for ; told < n; told++ {
			handled()
		}
		return err
	}
	started := make(chan error, 1)
	go func() {
		answer, err := s.answer()
		if err == nil {
			err = tell(answer)
		}
		started <- err
	}()
	return func() error {
		select {
		case err := <-started:
			if err != nil {
				return err
			}
		default:
			return nil // the harness has given up, and says so; the process is yet to answer
		}
		answer, err := s.ask("stop")
		if err != nil {
			return err
		}
		return tell(answer)
	}, nil
}

func (s *nodeSystem) allDone(ctx context.Context) (done bool, err error) {
	err = s.pool.QueryRow(ctx, s.done).Scan(&done)
	return done, err
}

func (s *nodeSystem) check(ctx context.Context, inserted, done int) error {
	var left int
	if err := s.pool.QueryRow(ctx, s.left).Scan(&left); err != nil {
		return err
	}
	if left != inserted-done {
		return fmt.Errorf("%d jobs are not completed, want %d", left, inserted-done)
	}
	return nil
}
