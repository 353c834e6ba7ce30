//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/callq/callq/verification/oracle"
	"github.com/jackc/pgx/v5"
)

// recordSQL notes what is deleted from the tables, for the accounts must cover it, and final states
// that change. The triggers act in the transaction of what they note.
const recordSQL = `
CREATE TABLE test_calls (id bigint, status text, by_test boolean, key text);
CREATE TABLE test_attempts (call bigint, attempt int, outcome text, charged int);
CREATE TABLE test_changes (id bigint, was text, became text, at timestamptz DEFAULT clock_timestamp());
CREATE FUNCTION test_record() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_TABLE_NAME = 'call_attempts' THEN
        INSERT INTO test_attempts VALUES (OLD.call_id, OLD.attempt, OLD.outcome, jsonb_array_length(OLD.charged));
    ELSIF TG_OP = 'UPDATE' THEN
        INSERT INTO test_changes VALUES (OLD.id, OLD.status, NEW.status);
    ELSE
        INSERT INTO test_calls VALUES (OLD.id, OLD.status, current_setting('application_name') = '` + deletesByTest + `', OLD.key);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER test_deleted AFTER DELETE ON call_queue FOR EACH ROW EXECUTE FUNCTION test_record();
CREATE TRIGGER test_retired AFTER DELETE ON call_attempts FOR EACH ROW EXECUTE FUNCTION test_record();
CREATE TRIGGER test_changed AFTER UPDATE ON call_queue FOR EACH ROW
    WHEN (OLD.status IN ('done', 'failed', 'cancelled') AND NEW.status <> OLD.status) EXECUTE FUNCTION test_record();`

const callsSQL = `
SELECT id, status, false AS deleted, false AS by_test, key = '` + poisoned + `' AS poison FROM call_queue
UNION ALL SELECT id, status, true, by_test, key = '` + poisoned + `' FROM test_calls ORDER BY id`

const attemptsSQL = `
SELECT call_id AS call, attempt, outcome, jsonb_array_length(charged) AS charged FROM call_attempts
UNION ALL SELECT call, attempt, outcome, charged FROM test_attempts ORDER BY 1, 2`

const changesSQL = `SELECT format('call %s was %s and became %s at %s', id, was, became, at) FROM test_changes`

func (s *stack) record() {
	s.t.Helper()
	if _, err := s.pool.Exec(s.t.Context(), recordSQL); err != nil {
		s.t.Fatal(err)
	}
}

func read[T any](s *stack, sql string, to pgx.RowToFunc[T]) []T {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	rows, err := s.pool.Query(ctx, sql)
	if err != nil {
		s.t.Fatal(err)
	}
	list, err := pgx.CollectRows(rows, to)
	if err != nil {
		s.t.Fatal(err)
	}
	return list
}

// account gathers what the oracle judges.
func (r *killRun) account() oracle.Account {
	r.t.Helper()
	a := oracle.Account{
		Limits:       killLimits(),
		Acknowledged: r.load.known(),
		Calls:        read(r.stack, callsSQL, pgx.RowToStructByName[oracle.Call]),
		Attempts:     read(r.stack, attemptsSQL, pgx.RowToStructByName[oracle.Attempt]),
		Open:         read(r.stack, `SELECT count(*) FROM callq.call_open`, pgx.RowTo[int])[0],
	}
	for _, q := range r.api.Requests() {
		end := oracle.Never
		if !q.Ended.IsZero() {
			end = q.Ended.Sub(r.begun)
		}
		a.Requests = append(a.Requests, oracle.Request{
			At: q.At.Sub(r.begun), End: end, Call: q.CallID, Attempt: q.Attempt, Queue: strings.TrimPrefix(q.Path, "/"),
			Key: q.Key, Cost: q.Cost,
		})
	}
	return a
}

// judge holds everything against the rules, and keeps the evidence where one does not hold.
func (r *killRun) judge(drained bool) {
	r.t.Helper()
	for _, k := range append(slices.Clone(r.kills), r.errors...) { // first: what follows needs Postgres
		r.t.Log(k)
	}
	a := r.account()
	report := slices.Clone(r.errors)
	if !drained {
		report = append(report, fmt.Sprintf("not drained within %s", drainWithin))
	}
	for _, f := range a.Findings() {
		report = append(report, f.String())
	}
	report = append(report, read(r.stack, changesSQL, pgx.RowTo[string])...)
	if out, code := r.command("verify"); code != 0 {
		report = append(report, fmt.Sprintf("verify: exit %d\n%s", code, out))
	}
	for _, v := range r.victims {
		if v.process != nil {
			if err := v.alive(); err != nil {
				report = append(report, err.Error())
			}
		}
	}
	outcomes := map[string]int{}
	for _, t := range a.Attempts {
		outcomes[t.Outcome]++
	}
	r.t.Logf("%d calls (%d acknowledged), %d requests, attempts %v, not inserted %v", len(a.Calls), len(a.Acknowledged),
		len(a.Requests), outcomes, r.load.failures)
	for _, l := range a.Limits {
		within := fmt.Sprint("in any ", l.Window)
		if l.Window == 0 {
			within = "at once"
		}
		r.t.Logf("limit %s: most %s: %d of %d", l.Name, within, l.Most(a.Requests), l.Rate)
	}
	at, pause := longestPause(a.Requests)
	r.t.Logf("longest time without a request: %.1fs from %.1fs", pause.Seconds(), at.Seconds())
	r.t.Logf("the API's own process was held up for at most %s", longest(r.stalls))
	errors := errorsIn(r.logs.postgres.String())
	r.t.Logf("errors of Postgres: %v", errors)
	if n := errors["deadlock detected"]; n > 0 {
		report = append(report, fmt.Sprintf("Postgres detected %d deadlocks: locks are taken in one order everywhere", n))
	}
	if len(report) == 0 {
		return
	}
	const shown = 20
	for i, line := range report {
		if i == shown {
			r.t.Errorf("and %d more", len(report)-shown)
			break
		}
		r.t.Error(line)
	}
	r.keep(a, report)
}

// keep writes what is needed to find the cause into a folder that stays, and prints the ends of the
// logs.
func (r *killRun) keep(a oracle.Account, report []string) {
	r.t.Helper()
	dir, err := os.MkdirTemp("", "kill-")
	if err != nil {
		r.t.Fatal(err)
	}
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			r.t.Error(err)
		}
	}
	write("report.txt", fmt.Sprintf("seed %d, begun at %s\n\n%s\n\n%s\n\nheld up: %v\n", r.seed, r.begun.Format(time.RFC3339Nano),
		strings.Join(report, "\n"), strings.Join(r.kills, "\n"), r.stalls))
	var requests strings.Builder
	for _, q := range a.Requests {
		fmt.Fprintf(&requests, "%s %s\n", r.begun.Add(q.At).UTC().Format("15:04:05.000000"), q)
	}
	write("requests.txt", requests.String())
	for _, table := range []string{"call_queue", "callq.call_open", "call_attempts", "callq.call_usage", "callq.call_limits", "callq.call_limit_versions", "callq.call_clock_gains", "callq.call_workers", "test_calls"} {
		rows := read(r.stack, "SELECT to_jsonb(x)::text FROM "+table+" x ORDER BY 1", pgx.RowTo[string])
		write(table+".jsonl", strings.Join(rows, "\n"))
	}
	write("postgres.log", r.logs.postgres.String())
	write("redis.log", r.logs.redis.String())
	for _, v := range r.victims {
		if v.process == nil {
			continue
		}
		for _, p := range append(slices.Clone(v.former), v.process) {
			pid := strconv.Itoa(p.cmd.Process.Pid)
			write(strings.ReplaceAll(v.name, " ", "-")+"-"+pid+".log", p.log.String())
		}
		r.t.Logf("the end of the log of %s:\n%s", v.name, tail(v.process.log.String(), 10))
	}
	r.t.Logf("seed %d; requests, tables and logs are in %s", r.seed, dir)
}

func longestPause(requests []oracle.Request) (at, pause time.Duration) {
	for i := 1; i < len(requests); i++ {
		if d := requests[i].At - requests[i-1].At; d > pause {
			at, pause = requests[i-1].At, d
		}
	}
	return at, pause
}

// errorsIn counts the errors in a log of Postgres, numbers left out.
func errorsIn(log string) map[string]int {
	counts := map[string]int{}
	for line := range strings.Lines(log) {
		if _, message, found := strings.Cut(line, "ERROR:  "); found {
			counts[strings.TrimSpace(regexp.MustCompile(`\d+`).ReplaceAllString(message, "N"))]++
		}
	}
	return counts
}

func tail(text string, lines int) string {
	all := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// stall is a time in which this process, and so the API, did not get to run: arrivals of it may be
// recorded late.
type stall struct{ From, For time.Duration }

// watchStalls notes when a timer of this process is late; the function that it returns ends that.
func watchStalls() func() []stall {
	const every, late = 5 * time.Millisecond, 20 * time.Millisecond
	stop, result := make(chan struct{}), make(chan []stall)
	begun := time.Now()
	go func() {
		var stalls []stall
		tick := time.NewTicker(every)
		defer tick.Stop()
		for last := begun; ; {
			select {
			case <-tick.C:
			case <-stop:
				result <- stalls
				return
			}
			now := time.Now()
			if by := now.Sub(last) - every; by > late {
				stalls = append(stalls, stall{last.Sub(begun), by})
			}
			last = now
		}
	}()
	return func() []stall { close(stop); return <-result }
}

func longest(stalls []stall) time.Duration {
	var most time.Duration
	for _, s := range stalls {
		most = max(most, s.For)
	}
	return most
}
