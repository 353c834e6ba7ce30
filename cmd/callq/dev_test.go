package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/callq/callq/internal/limit"
)

// developing is a `callq dev` of the test's own, as a process.
type developing struct {
	ownServers
	*process
}

// devFolders makes a folder that every user may pass through, as homes and /var/lib are.
func devFolders(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "dev-of-callq-")
	must(t, err)
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	must(t, os.Chmod(dir, 0o755))
	return dir
}

// develop starts dev in a folder and waits for what it prints.
func develop(t *testing.T, dir string, change func(*exec.Cmd)) *developing {
	t.Helper()
	// Servers that are none of its own business: it must not touch them.
	w := world{t: t, postgres: noPostgres, redis: noRedis}
	w.config = atAnyPort + "postgres: {url: '" + noPostgres + "', direct_url: '" + noPostgres + "'}\nredis: {url: '" + noRedis + "'}\n"
	d := &developing{process: w.command("dev", "--dir", filepath.Join(dir, "data"), "-c", filepath.Join(dir, "config.yaml"), "-o", "json")}
	must(t, os.WriteFile(filepath.Join(dir, "config.yaml"), []byte(w.config), 0o644))
	d.cmd.Env = append(os.Environ(), d.cmd.Env...)
	d.cmd.Cancel = func() error { return d.cmd.Process.Signal(syscall.SIGTERM) } // at the end of the test
	if change != nil {
		change(d.cmd)
	}
	out, err := d.cmd.StdoutPipe()
	must(t, err)
	d.start()
	if err := json.NewDecoder(bufio.NewReader(out)).Decode(&d.ownServers); err != nil {
		t.Fatalf("%v\n%s", err, d.log)
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	d.ready()
	return d
}

// interrupt is Ctrl-C: all ends, and cleanly.
func (d *developing) interrupt() {
	d.t.Helper()
	d.send(os.Interrupt)
	d.exits(exitDone)
	if conn, err := pgx.Connect(d.t.Context(), d.Postgres); err == nil {
		d.t.Error("Postgres lives on")
		_ = conn.Close(d.t.Context())
	}
	if _, err := d.redis().Ping(d.t.Context()).Result(); err == nil {
		d.t.Error("Redis lives on")
	}
}

func (d *developing) redis() *redis.Client {
	d.t.Helper()
	return world{t: d.t, redis: d.Redis}.redisClient()
}

// one asks Postgres for a single text.
func (d *developing) one(sql string) (answer string) {
	d.t.Helper()
	return one[string](world{t: d.t, postgres: d.Postgres}, sql)
}

// call inserts a call from plain SQL, and sees that it is done.
func (d *developing) call(url string) (id string) {
	d.t.Helper()
	id = d.one(fmt.Sprintf(`INSERT INTO call_queue (call_data) VALUES ('{"url": %q}') RETURNING id::text`, url))
	eventually(d.t, "the call is done", func() bool { return d.one("SELECT status FROM call_queue WHERE id = "+id) == "done" })
	return id
}

// A call by plain SQL is done; a second dev of the folder says that it is in use; after Ctrl-C, and also after
// kill -9, the next has what was there.
func TestDev(t *testing.T) {
	t.Parallel()
	url := answering(t)
	dir := devFolders(t)
	d := develop(t, dir, nil)
	has(t, d.log.String(), "for development, not for production", filepath.Join(dir, "data"))
	first := d.call(url)
	eventually(t, "it listens at its own Postgres", func() bool {
		return d.one("SELECT count(*)::text FROM pg_stat_activity WHERE query IN ('LISTEN callq_wake', '-- ping') OR query LIKE 'SELECT setval(''callq.call_wake_seq''%'") == "1"
	})
	must(t, d.redis().Set(t.Context(), "kept", "yes", 0).Err())

	second := world{t: t}.run("dev", "--dir", filepath.Join(dir, "data"))
	if words := filepath.Join(dir, "data", "postgres") + " is in use by another server; give another folder than "; second.code != exitFailed || !strings.Contains(second.stderr, words) {
		t.Errorf("a second dev: exit code %d, without %q\n%s", second.code, words, second.stderr)
	}
	d.interrupt()

	for _, how := range []string{"Ctrl-C", "kill -9"} {
		d = develop(t, dir, nil)
		if status := d.one("SELECT status FROM call_queue WHERE id = " + first); status != "done" {
			t.Errorf("after %s the call is %s", how, status)
		}
		if how == "Ctrl-C" {
			if kept, err := d.redis().Get(t.Context(), "kept").Result(); err != nil || kept != "yes" {
				t.Errorf("after %s Redis has %q, %v", how, kept, err)
			}
			d.call(url)
			d.kill()
		}
	}
	d.call(url)
	d.interrupt()
}

// As an ordinary user, with the data in the home. (As root TestDev runs it, where root runs the tests.)
func TestDevOfAnOrdinaryUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("it needs root, to run callq as the user nobody; TestDev ran it as this user")
	}
	nobody, err := user.Lookup("nobody")
	must(t, err)
	uid, errUID := strconv.Atoi(nobody.Uid)
	gid, errGID := strconv.Atoi(nobody.Gid)
	if errUID != nil || errGID != nil {
		t.Fatal(errUID, errGID)
	}
	url := answering(t)
	dir := devFolders(t)
	home := filepath.Join(dir, "home")
	must(t, os.Mkdir(home, 0o700))
	must(t, os.Chown(home, uid, gid))
	self, err := os.ReadFile(os.Args[0])
	must(t, err)
	program := filepath.Join(dir, "callq") // go test's own folder is closed to other users
	syscall.ForkLock.RLock()               // a child that another test forks meanwhile would keep it open for writing, and so from being run
	err = os.WriteFile(program, self, 0o755)
	syscall.ForkLock.RUnlock()
	must(t, err)
	asNobody := func(cmd *exec.Cmd) {
		cmd.Path, cmd.Dir = program, home
		cmd.Args = append([]string{program, "dev"}, cmd.Args[4:]...) // without --dir
		cmd.Env = append(cmd.Env, "HOME="+home, "XDG_DATA_HOME=", "XDG_CACHE_HOME=")
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	}
	d := develop(t, dir, asNobody)
	if _, err := os.Stat(filepath.Join(home, ".local", "share", "callq", "dev", "postgres")); err != nil {
		t.Errorf("the data is not in the home: %v", err)
	}
	d.call(url)
	d.interrupt()
}

func TestDevFolder(t *testing.T) {
	t.Parallel()
	none, err := devFolder(&app{}, "")
	if os.Geteuid() == 0 && none != "/var/lib/callq/dev" || os.Geteuid() != 0 && err == nil {
		t.Errorf("without any home: %s, %v", none, err)
	}
	for _, environ := range [][]string{{"XDG_DATA_HOME=/data", "HOME=/home/u"}, {"XDG_DATA_HOME=/other", "XDG_DATA_HOME=/data"}} {
		if got, err := devFolder(&app{env: variables(environ)}, ""); got != "/data/callq/dev" || err != nil {
			t.Errorf("%v: %s, %v", environ, got, err)
		}
	}
	here, err := filepath.Abs("d")
	if got, err2 := devFolder(&app{env: map[string]string{"XDG_DATA_HOME": "/data"}}, "d"); got != here || err != nil || err2 != nil {
		t.Errorf("--dir d: %s, %v, %v", got, err, err2)
	}
}

// A timeline of requests against 2 per second. Of 5 in 1.5 s two are too many; the limit allows 2 x (1.5 + 1).
func TestDemoAPICounts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := &demoAPI{rate: limit.Rate{Units: 2, Window: time.Second}}
		if v, _ := a.verdict(); v != (demoVerdict{}) {
			t.Errorf("before the first request: %+v", v)
		}
		for _, step := range []struct {
			after   time.Duration
			allowed bool
		}{{0, true}, {100 * time.Millisecond, true}, {899 * time.Millisecond, false}, {501 * time.Millisecond, true}, {0, false}} {
			time.Sleep(step.after)
			if got := a.arrived(); got != step.allowed {
				t.Errorf("request %d: allowed %v", len(a.arrivals), got)
			}
		}
		time.Sleep(999 * time.Millisecond)
		want := demoVerdict{Requests: 5, Max: 3, R429: 2, Used: 1}
		if v, inWindow := a.verdict(); v != want || inWindow != 2 {
			t.Errorf("verdict %+v, want %+v; %d in the window, want 2", v, want, inWindow)
		}
	})
}
