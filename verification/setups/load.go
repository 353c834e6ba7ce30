package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/callq/callq/verification/fakeapi"
	"github.com/callq/callq/verification/oracle"
)

// The limit of all calls.
const (
	rate   = 50
	window = time.Second
)

// drainWithin is how long the calls may take, beyond what the limit makes them.
const drainWithin = 3 * time.Minute

// world is callq on the servers of a set-up.
type world struct {
	*servers
	on     *stage
	config string
	api    *fakeapi.API
	begun  time.Time
	listen []string // where its processes listen
}

// underLoad is a set-up that calls run on, with its fault in the middle.
func underLoad(up func(ctx context.Context, on *stage) (*servers, error)) func(context.Context, *stage) (string, error) {
	return func(ctx context.Context, on *stage) (string, error) {
		s, err := up(ctx, on)
		if err != nil {
			return "", fmt.Errorf("bring the servers up: %w", err)
		}
		w, err := newWorld(ctx, on, s)
		if err != nil {
			return "", err
		}
		return w.load(ctx)
	}
}

// newWorld starts the API, writes the configuration and migrates.
func newWorld(ctx context.Context, on *stage, s *servers) (w *world, err error) {
	w = &world{servers: s, on: on, begun: time.Now(), config: filepath.Join(on.dir, "config.yaml")}
	if w.api, err = fakeapi.Start(fakeapi.Config{Latency: 20 * time.Millisecond}); err != nil {
		return nil, err
	}
	on.later(w.api.Close)
	text := fmt.Sprintf("postgres: %s\nredis: %s\nhttp: {listen: off}\nhttp_task: {private_hosts: [127.0.0.1]}\nworker: {shutdown_timeout: 10s}\n"+
		"limits: {api: {rate: %d/%s}}\nqueues: {default: {limits: [api]}}\n", s.postgres, s.redis, rate, window)
	if err := os.WriteFile(w.config, []byte(text), 0o600); err != nil {
		return nil, err
	}
	_, err = w.command(ctx, 0, "migrate", "up")
	return w, err
}

// command runs a callq command, which must end with this exit code.
func (w *world) command(ctx context.Context, want int, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, w.on.callq, append([]string{"--config", w.config}, args...)...)
	out, err := cmd.CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok || ok && exit.ExitCode() != want || !ok && want != 0 {
		return string(out), fmt.Errorf("callq %s: exit code %d, want %d: %w\n%s", strings.Join(args, " "), cmd.ProcessState.ExitCode(), want, err, out)
	}
	return string(out), nil
}

// serve starts a process of callq's.
func (w *world) serve(ctx context.Context) error {
	port, err := freePort()
	if err != nil {
		return err
	}
	listen := "127.0.0.1:" + port
	if _, err := w.on.start("callq serve", func() *exec.Cmd {
		cmd := exec.Command(w.on.callq, "--config", w.config, "serve") //nolint:noctx // ended by signals
		cmd.Env = append(os.Environ(), "CALLQ_HTTP_LISTEN="+listen)
		cmd.SysProcAttr = &syscall.SysProcAttr{}
		return cmd
	}); err != nil {
		return err
	}
	w.listen = append(w.listen, listen)
	return until(ctx, "callq serve is ready", func() error { return ready(ctx, listen, http.StatusOK) })
}

// ready is nil if /readyz answers with this status.
func ready(ctx context.Context, listen string, status int) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+listen+"/readyz", nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != status {
		return fmt.Errorf("/readyz is %d, not %d", response.StatusCode, status)
	}
	return nil
}

// insertSQL has a producer's plain SQL insert calls in one statement.
const insertSQL = `INSERT INTO call_queue (call_data) SELECT jsonb_build_object('url', $1::text) FROM generate_series(1, $2) RETURNING id`

// load runs two processes and the calls, causes the fault, and judges.
func (w *world) load(ctx context.Context) (string, error) {
	for range 2 {
		if err := w.serve(ctx); err != nil {
			return "", err
		}
	}
	var ids []int64
	err := w.sql(ctx, func(conn *pgx.Conn) (err error) {
		rows, _ := conn.Query(ctx, insertSQL, w.api.URL(), w.on.calls)
		ids, err = pgx.CollectRows(rows, pgx.RowTo[int64])
		return err
	})
	if err != nil {
		return "", fmt.Errorf("insert the calls: %w", err)
	}
	begun := time.Now()
	if err := w.await(ctx, w.on.calls/3); err != nil {
		return "", err
	}
	if w.fault != nil {
		if err := w.fault(ctx, w); err != nil {
			return "", fmt.Errorf("the fault: %w", err)
		}
	}
	if err := w.await(ctx, w.on.calls); err != nil {
		return "", errors.Join(err, w.judge(ctx, ids))
	}
	took := time.Since(begun)
	if err := w.settle(ctx); err != nil {
		return "", errors.Join(err, w.judge(ctx, ids))
	}
	if err := w.judge(ctx, ids); err != nil {
		return "", err
	}
	if w.after != nil {
		if err := w.after(ctx, w); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%d calls in %.1fs, at most %d in 1s", len(ids), took.Seconds(), w.api.MaxInWindow(window)), nil
}

// await waits until the API has seen so many requests.
func (w *world) await(ctx context.Context, requests int) error {
	limit := time.NewTimer(drainWithin)
	defer limit.Stop()
	for w.api.Count() < requests {
		select {
		case <-time.After(20 * time.Millisecond):
		case <-limit.C:
			return fmt.Errorf("%d of %d requests after %s", w.api.Count(), requests, drainWithin)
		case <-ctx.Done():
			return fmt.Errorf("%d of %d requests: %w", w.api.Count(), requests, ctx.Err())
		}
	}
	return nil
}

// settle waits until every call has ended and no attempt is open.
func (w *world) settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, drainWithin)
	defer cancel()
	return wait(ctx, "all calls end", func() error {
		return w.sql(ctx, func(conn *pgx.Conn) error {
			var waiting, open int
			err := conn.QueryRow(ctx, settledSQL).Scan(&waiting, &open)
			if err == nil && waiting+open > 0 {
				return fmt.Errorf("%d calls have not ended, %d attempts are open", waiting, open)
			}
			return err
		})
	})
}

const (
	settledSQL = `
SELECT (SELECT count(*) FROM call_queue WHERE status NOT IN ('done', 'failed', 'cancelled')), (SELECT count(*) FROM callq.call_open)`
	callsSQL    = `SELECT id, status, false AS deleted, false AS by_test, false AS poison FROM call_queue ORDER BY id`
	attemptsSQL = `SELECT call_id AS call, attempt, outcome, jsonb_array_length(charged) AS charged FROM call_attempts ORDER BY 1, 2`
)

// sql runs statements on a connection of its own: a former one may have led to a former primary.
func (w *world) sql(ctx context.Context, do func(conn *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, w.admin)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	return do(conn)
}

// judge holds what the API saw and what the tables say against the rules, and asks verify and doctor.
func (w *world) judge(ctx context.Context, ids []int64) error {
	a := oracle.Account{Limits: []oracle.Limit{{Name: "api", Rate: rate, Window: window, Queues: []string{"default"}}}, Acknowledged: ids}
	err := w.sql(ctx, func(conn *pgx.Conn) (err error) {
		rows, _ := conn.Query(ctx, callsSQL)
		if a.Calls, err = pgx.CollectRows(rows, pgx.RowToStructByName[oracle.Call]); err != nil {
			return err
		}
		rows, _ = conn.Query(ctx, attemptsSQL)
		if a.Attempts, err = pgx.CollectRows(rows, pgx.RowToStructByName[oracle.Attempt]); err != nil {
			return err
		}
		return conn.QueryRow(ctx, `SELECT count(*) FROM callq.call_open`).Scan(&a.Open)
	})
	if err != nil {
		return err
	}
	sent := map[string]int{}
	for _, r := range w.api.Requests() {
		end := oracle.Never
		if !r.Ended.IsZero() {
			end = r.Ended.Sub(w.begun)
		}
		a.Requests = append(a.Requests, oracle.Request{
			At: r.At.Sub(w.begun), End: end, Call: r.CallID, Attempt: r.Attempt, Queue: "default", Cost: 1,
		})
		sent[r.CallID]++
	}
	var wrong []error
	for _, f := range a.Findings() {
		wrong = append(wrong, errors.New(f.String()))
	}
	for _, c := range a.Calls {
		if n := sent[fmt.Sprint(c.ID)]; c.Status != "done" || n != 1 {
			wrong = append(wrong, fmt.Errorf("call %d is %s, and was made %d times", c.ID, c.Status, n))
		}
	}
	const most = 8 // more say no more
	wrong = wrong[:min(len(wrong), most)]
	said, verify := w.command(ctx, 0, "verify")
	if w.failsOver && !strings.Contains(said, "failed over, and nothing was missing") {
		verify = errors.Join(verify, errors.New("verify does not say that the failover lost nothing:\n"+said))
	}
	said, doctor := w.command(ctx, w.doctor, "doctor")
	if w.doctor == 0 && onlyLate(said) {
		doctor = nil
	}
	return errors.Join(append(wrong, verify, doctor)...)
}

// onlyLate reports whether the only problem that doctor finds is that workers were late, as they are on a busy machine.
func onlyLate(said string) bool {
	late := false
	for line := range strings.Lines(said) {
		if problem, is := strings.CutPrefix(line, "problem"); is {
			if !strings.HasPrefix(strings.TrimSpace(problem), "late requests: ") {
				return false
			}
			late = true
		}
	}
	return late
}
