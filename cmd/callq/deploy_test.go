package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.yaml.in/yaml/v3"

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
			url := answering(t)
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
	owners := one[[]string](w, `SELECT array_agg(DISTINCT relowner::regrole::text) FROM pg_class WHERE relnamespace IN ('callq'::regnamespace, 'public'::regnamespace)`)
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

// compose is what of docker-compose.yml this test knows. A key that it does not is an error.
type compose struct {
	Name     string
	Services map[string]composeService
	Volumes  map[string]any
	Configs  map[string]struct{ Content string }
	Callq    any `yaml:"x-callq"`
	Owner    any `yaml:"x-owner"`
	Daemon   any `yaml:"x-daemon"`
}

type composeService struct {
	Image, Build    string
	Command         []string
	Environment     map[string]string
	Volumes         []string
	DependsOn       map[string]map[string]string `yaml:"depends_on"`
	Restart         string
	StopGracePeriod time.Duration `yaml:"stop_grace_period"`
	Healthcheck     struct {
		Test              []string
		Interval, Timeout time.Duration
		StartPeriod       time.Duration `yaml:"start_period"`
		Retries           int
		Disable           bool
	}
	Deploy      struct{ Replicas int }
	ReadOnly    bool     `yaml:"read_only"`
	CapDrop     []string `yaml:"cap_drop"`
	SecurityOpt []string `yaml:"security_opt"`
	ShmSize     string   `yaml:"shm_size"`
	Configs     []struct{ Source, Target string }
}

// readCompose returns callq's services in the order of their start, each replica by itself, and what Postgres runs in an
// empty volume.
func readCompose(t *testing.T) (services []deployed, roles string) {
	t.Helper()
	var file compose
	decoder := yaml.NewDecoder(bytes.NewReader(readRepo(t, "docker-compose.yml")))
	decoder.KnownFields(true)
	must(t, decoder.Decode(&file))
	for _, name := range []string{"migrate", "roles", "dispatcher", "worker"} {
		s := file.Services[name]
		d := deployed{name: name, args: s.Command, env: s.Environment, stop: s.StopGracePeriod}
		for name, value := range s.Environment {
			d.env[name] = interpolate(t, value)
		}
		if !slices.Contains(s.Volumes, "./config.yaml:/etc/callq/config.yaml:ro") {
			t.Errorf("%s has no config.yaml", name)
		}
		if d.args[0] != "migrate" {
			if s.Restart != "unless-stopped" || s.DependsOn["roles"]["condition"] != "service_completed_successfully" {
				t.Errorf("%s: restart %q, depends on %v", name, s.Restart, s.DependsOn)
			}
			d.health = ofCallq(t, s.Healthcheck.Test[1:])
		}
		for range max(s.Deploy.Replicas, 1) {
			services = append(services, d)
		}
	}
	migrate := file.Services["migrate"]
	if migrate.DependsOn["postgres"]["condition"] != "service_healthy" || migrate.Restart != "no" {
		t.Errorf("migrate: %+v", migrate)
	}
	if once := file.Services["roles"]; once.DependsOn["migrate"]["condition"] != "service_completed_successfully" || once.Restart != "no" {
		t.Errorf("roles: %+v", once)
	}
	if len(file.Services) != 6 || len(services) != 5 {
		t.Errorf("%d services, of which callq's are %d with replicas; want 6 and 5", len(file.Services), len(services))
	}
	if mounted := file.Services["postgres"].Configs; len(mounted) != 1 || mounted[0].Source != "roles" || !strings.HasPrefix(mounted[0].Target, "/docker-entrypoint-initdb.d/") {
		t.Errorf("postgres: configs %v", mounted)
	}
	if redis := file.Services["redis"]; !strings.Contains(strings.Join(redis.Command, " "), "--maxmemory-policy noeviction") {
		t.Errorf("redis: %v", redis.Command)
	}
	for name, s := range file.Services {
		for _, volume := range s.Volumes {
			source, _, _ := strings.Cut(volume, ":")
			if _, named := file.Volumes[source]; !named && source != "./config.yaml" {
				t.Errorf("%s: volume %s is not named", name, source)
			}
		}
		for variable, value := range s.Environment {
			if strings.Contains(variable, "PASSWORD") && !strings.HasPrefix(value, "${POSTGRES_PASSWORD:-callq}") && !strings.Contains(value, "secret") {
				t.Errorf("%s: %s holds a secret", name, variable)
			}
		}
	}
	return services, interpolate(t, file.Configs["roles"].Content)
}

// interpolate does with a value what Compose does.
func interpolate(t *testing.T, value string) string {
	t.Helper()
	return os.Expand(value, func(name string) string {
		of, ok := strings.CutSuffix(name, "_PASSWORD:-callq")
		if !ok || of != "POSTGRES" && of != "OWNER" {
			t.Errorf("%s: a variable that nobody sets", value)
		}
		return "secret of " + of
	})
}

// readDockerfile returns what a container does by default.
func readDockerfile(t *testing.T) deployed {
	t.Helper()
	text := strings.ReplaceAll(string(readRepo(t, "Dockerfile")), "\\\n", " ")
	_, final, _ := strings.Cut(text, "\nFROM scratch\n")
	instructions := map[string]string{}
	for line := range strings.Lines(final) {
		name, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		instructions[name] = rest
	}
	listed := func(name string) (words []string) {
		if err := json.Unmarshal([]byte(instructions[name]), &words); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return words
	}
	_, check, _ := strings.Cut(instructions["HEALTHCHECK"], "CMD ")
	instructions["check"] = check
	d := deployed{
		name: "image", args: ofCallq(t, append(listed("ENTRYPOINT"), listed("CMD")...)), health: ofCallq(t, listed("check")),
		env: map[string]string{"DATABASE_URL": "", "REDIS_URL": ""},
	}
	for pair := range strings.FieldsSeq(instructions["ENV"]) {
		variable, value, _ := strings.Cut(pair, "=")
		d.env[variable] = value
	}
	if _, port, err := net.SplitHostPort(d.env["CALLQ_HTTP_LISTEN"]); err != nil || port != instructions["EXPOSE"] {
		t.Errorf("ENV %s, EXPOSE %s: %v", instructions["ENV"], instructions["EXPOSE"], err)
	}
	if !regexp.MustCompile(`^[1-9]\d*:[1-9]\d*$`).MatchString(instructions["USER"]) {
		t.Errorf("USER %q: want numbers, and not root's", instructions["USER"])
	}
	if !strings.Contains(text, "RUN CGO_ENABLED=0 go build -trimpath ") || !strings.Contains(final, "COPY --from=build /out/callq "+installed+"\n") {
		t.Error("the program is not built static, or not put where it is run")
	}
	return d
}

// readUnit returns what a systemd unit runs; the first of its instances.
func readUnit(t *testing.T, name string) deployed {
	t.Helper()
	settings := map[string]string{}
	d := deployed{name: name, env: map[string]string{"DATABASE_URL": "", "REDIS_URL": ""}}
	for line := range strings.Lines(string(readRepo(t, "docs/systemd/"+name))) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") || strings.HasPrefix(line, "[") {
			continue
		}
		key, value, ok := strings.Cut(strings.ReplaceAll(line, "%i", "1"), "=")
		if !ok {
			t.Errorf("%s: %q is not a setting", name, line)
		}
		if key == "Environment" {
			variable, value, _ := strings.Cut(value, "=")
			d.env[variable] = value
			continue
		}
		settings[key] = value
	}
	d.args = ofCallq(t, strings.Fields(settings["ExecStart"]))
	at := slices.Index(d.args, "/etc/callq/config.yaml")
	if at < 0 {
		t.Fatalf("%s: ExecStart=%s names no configuration", name, settings["ExecStart"])
	}
	d.args[at] = "../../config.yaml"
	var err error
	if d.stop, err = time.ParseDuration(settings["TimeoutStopSec"]); err != nil {
		t.Error(err)
	}
	if settings["KillSignal"] != "SIGTERM" || settings["ExecReload"] != "/bin/kill -HUP $MAINPID" || settings["DynamicUser"] != "yes" {
		t.Errorf("%s: %v", name, settings)
	}
	return d
}

// ofCallq takes the program off a command line.
func ofCallq(t *testing.T, words []string) []string {
	t.Helper()
	if len(words) < 2 || words[0] != installed {
		t.Fatalf("%q does not run %s", words, installed)
	}
	return words[1:]
}

func readRepo(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../..", path))
	must(t, err)
	return text
}
