package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// canary is in all that a log must not have.
const canary = "c4n4ry"

// leakyCalls are call_data with canaries, for all the ways in which a call can end.
func leakyCalls(t *testing.T, api string) []string {
	t.Helper()
	refused, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	nobody := "http://" + refused.Addr().String()
	_ = refused.Close()
	var calls []string
	for _, target := range []string{
		api + "/", api + "/redirect", api + "/error", api + "/gone", api + "/hangup", api + "/garbled", api + "/surplus", api + "/limit",
		nobody + "/", "http://10.1.2.3/", "http://" + canary + ".invalid/", "http://u:" + canary + "@" + strings.TrimPrefix(api, "http://") + "/",
		"ftp://" + canary + "/", "http://[" + canary + "/", canary,
	} {
		data, err := json.Marshal(map[string]any{
			"method": "POST", "url": target + "?token=" + canary, "headers": map[string]string{"Authorization": "Bearer " + canary},
			"json": map[string]string{"password": canary}, "timeout": "20s",
		})
		must(t, err)
		calls = append(calls, string(data))
	}
	return append(calls, `{"`+canary+`": 1}`, `{"method": "`+canary+` x", "url": "`+api+`"}`, `["`+canary+`"]`,
		`{"url": "`+api+`", "timeout": "`+canary+`"}`, `{"url": "`+api+`", "headers": {"X": {"secret": "`+canary+`"}}}`,
		`{"url": "`+api+`", "headers": {"`+canary+`\n": "`+canary+`\n"}}`)
}

// What serve logs has nothing of call_data, answers and passwords, at any level, however a call ends; and at
// info no line for each call.
func TestLogsKeepSecrets(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"info", "debug"} {
		t.Run(level, func(t *testing.T) {
			t.Parallel()
			w, redis := newWorld(t).withRedis()
			u, err := url.Parse(w.postgres)
			must(t, err)
			u.User = url.UserPassword(u.User.Username(), canary)
			w.postgres = u.String()
			w.config = "http: {listen: 127.0.0.1:0}\nhttp_task: {private_hosts: [127.0.0.1], store: all}\nlog: {level: " + level + "}\n" +
				"queues: {default: {max_attempts: 2, backoff: 10ms, on_refused: retry}}\n"
			p := w.spawn("serve").ready() // a process of its own: the standard logger is one for all
			log := p.log
			api, _ := leaky(t)
			calls := leakyCalls(t, api)
			conn := w.connect()
			queue := func(sql string) {
				t.Helper()
				if _, err := conn.Exec(t.Context(), sql, calls, canary); err != nil {
					t.Fatal(err)
				}
				eventually(t, "all have ended", func() bool {
					var waiting int
					err := conn.QueryRow(t.Context(), `SELECT count(*) FROM call_queue
						WHERE finished_at IS NULL OR status IN ('new', 'error')`).Scan(&waiting)
					return err == nil && waiting == 0
				})
			}
			queue(`INSERT INTO call_queue (call_data, key) SELECT d::jsonb, $2 FROM unnest($1::text[]) d`)
			ends := "" // that the calls did go those ways, though a busy machine may be late for one
			err = conn.QueryRow(t.Context(), `SELECT string_agg(DISTINCT outcome, ' ' ORDER BY outcome)
				FROM call_attempts WHERE outcome <> 'not_sent'`).Scan(&ends)
			if err != nil || ends != "done error permanent" {
				t.Errorf("the calls ended %s, %v", ends, err)
			}
			const many = 100
			before := strings.Count(log.String(), "\n")
			calls = calls[:1]
			queue(fmt.Sprintf(`INSERT INTO call_queue (call_data, unique_key)
				SELECT d::jsonb, $2 || n FROM unnest($1::text[]) d, generate_series(1, %d) n`, many))
			if after := strings.Count(log.String(), "\n"); level == "info" && after-before >= many/10 {
				t.Errorf("%d lines for %d calls:\n%s", after-before, many, log)
			}
			redis.Kill()
			p.says("Redis")
			p.send(syscall.SIGTERM)
			p.exits(exitDone)
			for line := range strings.Lines(log.String()) {
				if strings.Contains(line, canary) || !strings.HasPrefix(line, "time=") { // libraries say nothing beside the log
					t.Errorf("it shows what it must not: %s", line)
				}
			}
		})
	}
}

// Nor do daemons and commands show passwords while they wait for servers, or when the URLs are bad.
func TestPasswordsAreNotSaid(t *testing.T) {
	t.Parallel()
	away := world{t: t, postgres: "postgres://u:" + canary + "@127.0.0.1:1/d", redis: "redis://:" + canary + "@127.0.0.1:1"}
	away.config = atAnyPort
	bad := world{t: t, postgres: "postgres://u:" + canary + "@h:port/d", redis: "redis://:" + canary + "@h:port"}
	for _, level := range []string{"info", "debug"} {
		w := away
		w.config += "log: {level: " + level + "}\n"
		d := w.start("serve")
		eventually(t, "it waits", func() bool { return strings.Contains(d.stderr.String(), "msg=waiting") })
		d.end()
		if strings.Contains(d.stderr.String(), canary) {
			t.Errorf("it shows a password:\n%s", &d.stderr)
		}
	}
	for _, args := range []string{
		"status --timeout 100ms", "dispatch --once --timeout 100ms", "config check", "config show", "config show -o json", "dev -o table",
	} {
		for _, w := range []world{away, bad} {
			if args == "dev -o table" && w.postgres == away.postgres {
				continue // it would run
			}
			w.t = t
			if a := w.run(strings.Fields(args)...); strings.Contains(a.stdout+a.stderr, canary) {
				t.Errorf("%s shows a password:\n%s%s", args, a.stdout, a.stderr)
			}
		}
	}
}

// The level and the format of the log are those of the configuration, on every line.
func TestLogForms(t *testing.T) {
	t.Parallel()
	for level, least := range map[string]string{"debug": "DEBUG", "info": "INFO", "warn": "WARN", "error": "ERROR"} {
		for _, format := range []string{"text", "json"} {
			var out bytes.Buffer
			a := &app{stderr: &out}
			w := world{t: t, config: "log: {level: " + level + ", format: " + format + "}\n"}
			a.env = variables(w.environ())
			cfg, err := a.loadConfig()
			must(t, err)
			log := a.logger(cfg)
			log.Debug("said", "n", 1)
			log.Info("said", "n", 1)
			log.Warn("said", "n", 1)
			log.Error("said", "n", 1)
			first, _, _ := strings.Cut(out.String(), "\n")
			form := regexp.MustCompile(`^time=\S+ level=` + least + ` msg=said n=1$`)
			if format == "json" {
				form = regexp.MustCompile(`^\{"time":"\S+","level":"` + least + `","msg":"said","n":1\}$`)
			}
			if !form.MatchString(first) {
				t.Errorf("%s, %s: the first line is %s", level, format, first)
			}
		}
	}
}

// A command that finds Redis away says so itself, and go-redis nothing beside it.
func TestRedisAwayIsSaidOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, args := range []string{"doctor", "maintain sweep", "dispatch --once"} {
		p := w.spawn(append(strings.Fields(args), "--timeout", "2s")...) // a process of its own, as below
		p.exits(exitUnreachable)
		said := p.log.String()
		if !strings.Contains(said, "callq: waiting up to 2s for Redis") {
			t.Errorf("%s does not say that Redis is away: %s", args, said)
		}
		for line := range strings.Lines(said) {
			if !strings.HasPrefix(line, "callq: ") {
				t.Errorf("%s: not callq's own words: %s", args, line)
			}
		}
	}
}
