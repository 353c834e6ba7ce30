package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	hourWorkers     = 2 // processes
	dispatchersRole = "bench_dispatchers"
	workersRole     = "bench_workers"
)

// hourLimit is what a second allows: a fifth above what comes, so that the limit counts each call and holds none up.
func hourLimit(rate int) int { return rate + (rate+4)/5 }

// hourCallq is callq as pacedCallq has it, with retention. Dispatchers and workers have each a role in Postgres, by which
// pg_stat_statements tells whose statements are whose.
type hourCallq struct {
	*pacedCallq
	conn    *pgx.Conn // of who measures, in callq's database
	config  string    // its file
	every   time.Duration
	running processes
}

func (b *bench) openHour(ctx context.Context, place pacedPlace) (*hourCallq, error) {
	for _, role := range []string{dispatchersRole, workersRole} {
		// As callq's own role does, it owns the tables, and so may vacuum them.
		if _, err := b.servers.admin.Exec(ctx, "CREATE ROLE "+role+" LOGIN SUPERUSER"); err != nil {
			return nil, fmt.Errorf("create a role: %w", err)
		}
	}
	s, err := openPacedCallq(ctx, place)
	if err != nil {
		return nil, err
	}
	h := &hourCallq{pacedCallq: s.(*pacedCallq), config: place.dir + "/config.yaml", every: max(b.paceFor/hourLines, time.Second)}
	if h.conn, err = pgx.Connect(ctx, place.postgres); err != nil {
		s.close()
		return nil, err
	}
	return h, nil
}

func (h *hourCallq) close() {
	_ = h.conn.Close(context.Background()) // its server goes
	h.pacedCallq.close()
}

// startAll starts the processes. Retention runs each line, and keeps what is done for as long.
func (h *hourCallq) startAll(ctx context.Context) error {
	seconds := int(h.every.Seconds())
	text := fmt.Sprintf(`limits: {api: {rate: %d/1s}}
queues: {default: {limits: [api]}}
schedule: {retention: "@every %ds"}
retention: {done: %ds}
`, hourLimit(h.place.rate), seconds, seconds)
	if err := os.WriteFile(h.config, []byte(text), 0o600); err != nil {
		return err
	}
	for i := range dispatchers + hourWorkers {
		verb, role := "work", workersRole
		if i < dispatchers {
			verb, role = "dispatch", dispatchersRole
		}
		if err := h.running.add(ctx, verb == "dispatch", h.environ(asRole(h.place.postgres, role), h.config), h.place.callq, verb); err != nil {
			return errors.Join(err, h.running.stop())
		}
	}
	return nil
}

// asRole is a URL of local's Postgres for another role.
func asRole(url, role string) string { return strings.Replace(url, "://postgres@", "://"+role+"@", 1) }

// awaitDone waits until no call waits or runs, but for no longer than that may take. It says how many are not done: retention
// removes none of those so soon.
func (h *hourCallq) awaitDone(ctx context.Context) (left int, err error) {
	over := time.After(hourEndWithin)
	tick := time.NewTicker(hourAsk)
	defer tick.Stop()
	for {
		err := h.conn.QueryRow(ctx, `SELECT count(*) FROM public.call_queue WHERE status <> 'done'`).Scan(&left)
		if err != nil || left == 0 {
			return left, err
		}
		select {
		case <-tick.C:
		case <-over:
			return left, nil
		case <-ctx.Done():
			return left, context.Cause(ctx)
		}
	}
}

// verify runs `callq verify` over what came within a time, and says its last line.
func (h *hourCallq) verify(ctx context.Context, within time.Duration) (last string, err error) {
	cmd := exec.CommandContext(ctx, h.place.callq, "verify", "--since", fmt.Sprintf("%ds", int(within.Seconds())+1))
	cmd.Env = append(os.Environ(), h.environ(h.place.postgres, h.config)...)
	var said, complained bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &complained
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("callq verify: %w\n%s%s", err, &said, &complained)
	}
	text := strings.TrimSpace(said.String())
	return text[strings.LastIndexByte(text, '\n')+1:], nil
}
