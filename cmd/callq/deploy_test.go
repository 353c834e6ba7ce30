package main

import (
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/callq/callq/internal/config"
	"github.com/callq/callq/internal/local"
)

const (
	installed = "/usr/local/bin/callq"
	// afterTimeout is what a daemon may take beyond shutdown_timeout: it says that it leaves, records what it
	// cut off, and closes its listener and connections.
	afterTimeout = 15 * time.Second
)

// deployed is a service that runs callq, as its file describes it.
type deployed struct {
	name   string
	args   []string
	env    map[string]string
	health []string // callq's arguments; nil: none
	stop   time.Duration
}

// What docker-compose.yml, the image and the systemd units run is run here, with their arguments and
// variables, against servers of the test's own; only where these are is put in their place.
//
//callq:guarantee 13
func TestDeployments(t *testing.T) {
	t.Parallel()
	unit := func(name string) []deployed {
		return []deployed{readUnit(t, "callq-dispatcher.service"), readUnit(t, name), readUnit(t, name)}
	}
	migrate := deployed{name: "migrate", args: []string{"migrate", "up"}, env: map[string]string{"DATABASE_URL": ""}}
	compose, roles := readCompose(t)
	for name, services := range map[string][]deployed{
		"compose": compose,
		"image":   {migrate, readDockerfile(t)},
		"systemd": append([]deployed{migrate}, unit("callq-worker@.service")...),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, _ := newWorld(t).withRedis()
			if name == "compose" {
				w = w.onServer(roles)
			} else {
				w.empty()
			}
			url, _, answer := api(t)
			answer()
			daemons := map[*process]deployed{}
			for _, s := range services {
				s.check(t, w)
				if s.args[0] == "migrate" {
					w.deploy(s).exits(exitDone)
					continue
				}
				daemons[w.deploy(s)] = s
			}
			for p, s := range daemons {
				w.healthy(s, p)
			}
			id := w.call(url)
			w.done(id)
			for p := range daemons {
				p.send(syscall.SIGTERM)
				p.exits(exitDone)
			}
			if name == "compose" {
				w.plain()
			}
		})
	}
}

// onServer gives w a Postgres of its own, with an empty database callq in which a superuser has run what Compose says.
func (w world) onServer(roles string) world {
	w.t.Helper()
	server, err := local.StartPostgres(w.t.Context(), local.Postgres{Settings: map[string]string{"fsync": "off"}})
	must(w.t, err)
	w.t.Cleanup(func() { _ = server.Stop() })
	w.postgres = server.URL("postgres")
	w.exec(`CREATE DATABASE callq`)
	w.postgres = server.URL("callq")
	w.exec(roles)
	return w
}

// plain says that nothing of callq's runs as a superuser, and that its login may not change what is not a daemon's.
func (w world) plain() {
	w.t.Helper()
	owners := one[[]string](w, `SELECT array_agg(DISTINCT relowner::regrole::text) FROM pg_class WHERE relnamespace = 'public'::regnamespace`)
	superusers := one[[]string](w, `SELECT array_agg(rolname::text) FROM pg_roles WHERE rolsuper`)
	if !slices.Equal(owners, []string{"callq_owner"}) || !slices.Equal(superusers, []string{"postgres"}) {
		w.t.Errorf("tables are of %q, and superusers are %q", owners, superusers)
	}
	u, err := url.Parse(w.postgres)
	must(w.t, err)
	u.User = url.User("callq")
	w.postgres = u.String()
	for _, line := range []string{"migrate down --yes", "migrate roles"} {
		refusedTo(w.t, w, line)
	}
}

// check holds a service against what callq knows: variables, and how long it is given to stop.
func (s deployed) check(t *testing.T, w world) {
	t.Helper()
	var out, errs buffer
	environ := []string{"CALLQ_CONFIG=../../config.yaml", "DATABASE_URL=" + w.postgres, "REDIS_URL=" + w.redis}
	for name, value := range s.env {
		if strings.HasPrefix(name, "CALLQ_") {
			environ = append(environ, name+"="+value)
		}
	}
	if code := runCode(t.Context(), []string{"config", "show", "-o", "json"}, nil, &out, &errs, environ); code != exitDone || errs.String() != "" {
		t.Errorf("%s: its variables are not callq's: exit code %d\n%s", s.name, code, &errs)
	}
	for name := range s.env {
		known := slices.Contains([]string{"DATABASE_URL", "REDIS_URL", "PGHOST", "PGUSER", "PGDATABASE", "PGPASSWORD"}, name)
		if !known && !strings.Contains(out.String(), `"source": "`+name+`"`) {
			t.Errorf("%s: callq does not know the variable %s", s.name, name)
		}
	}
	host, _, _ := net.SplitHostPort(s.env["CALLQ_HTTP_LISTEN"])
	if _, listens := s.env["CALLQ_HTTP_LISTEN"]; listens && host != "127.0.0.1" && s.env["CALLQ_HTTP_PAGES"] != "false" {
		t.Errorf("%s: who reaches its port reads the pages", s.name)
	}
	cfg, err := config.Load(config.Source{Path: "../../config.yaml"})
	must(t, err)
	if least := cfg.Worker.ShutdownTimeout + afterTimeout; s.stop < least && slices.Contains([]string{"work", "serve"}, s.args[0]) && s.stop > 0 {
		t.Errorf("%s is killed after %s, and may need %s", s.name, s.stop, least)
	}
}

// deploy runs a service as a process with its variables, which lead to the test's servers.
func (w world) deploy(s deployed) *process {
	w.t.Helper()
	pg, err := pgx.ParseConfig(w.postgres)
	must(w.t, err)
	here := map[string]string{
		"DATABASE_URL": w.postgres, "REDIS_URL": w.redis, "CALLQ_HTTP_LISTEN": "127.0.0.1:0",
		"PGHOST": pg.Host,
	}
	p := w.command(s.args...)
	p.cmd.Env = []string{beCallq + "=1", "CALLQ_CONFIG=../../config.yaml", "CALLQ_HTTP_TASK_PRIVATE_HOSTS=127.0.0.1", fmt.Sprint("PGPORT=", pg.Port)}
	for name, value := range s.env {
		if its, ok := here[name]; ok {
			value = its
		}
		p.cmd.Env = append(p.cmd.Env, name+"="+value)
	}
	return p.start()
}

// healthy waits until a service is ready, and runs its healthcheck.
func (w world) healthy(s deployed, p *process) {
	w.t.Helper()
	address := addressIn(w.t, p.log)
	awaitReady(w.t, address)
	if s.health == nil {
		return
	}
	check := w.command(s.health...)
	check.cmd.Env = append(slices.Clone(p.cmd.Env), "CALLQ_HTTP_LISTEN="+address)
	check.start().exits(exitDone)
}
