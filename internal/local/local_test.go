package local

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
)

func TestPostgresSurvivesKillAndRestart(t *testing.T) {
	t.Parallel()
	s := startPostgres(t, Postgres{Settings: map[string]string{"max_connections": "17"}})
	if got := query(t, s, "CREATE TABLE kept AS SELECT 'yes' AS kept; SHOW max_connections"); got != "17" {
		t.Errorf("max_connections %s, want 17", got)
	}
	before := s.Pid()
	s.Kill()
	if conn, err := pgx.Connect(t.Context(), s.URL("postgres")); err == nil {
		t.Error("a killed server took a connection")
		_ = conn.Close(t.Context())
	}
	for range 2 { // once from dead, once from running
		if err := s.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := query(t, s, "SELECT kept FROM kept"); got != "yes" {
			t.Errorf("after a restart: %q, want yes", got)
		}
	}
	if s.Pid() == before {
		t.Error("the restarted server has the old one's pid")
	}
	if err := errors.Join(s.Stop(), s.Stop()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(s.data); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the temporary folder is left: %v", err)
	}
	if err := s.Restart(t.Context()); err == nil {
		t.Error("a stopped server started again")
	}
}

// What means something in a URL or a shell may stand in the name of a folder, which may be too long for a socket. The data
// stays when Postgres stops.
func TestFolderOfAnyName(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	odd, long := filepath.Join(top, "a&b+c;d'%e ü#?"), filepath.Join(top, strings.Repeat("a folder & more ", 7))
	first := startPostgres(t, Postgres{Dir: filepath.Join(odd, "p")})
	if !strings.Contains(first.URL("postgres"), "%26") {
		t.Fatalf("the socket is elsewhere: %s", first.URL("postgres"))
	}
	query(t, first, "CREATE TABLE kept AS SELECT 'yes' AS kept; SELECT ''")
	r, err := StartRedis(t.Context(), Redis{Dir: filepath.Join(odd, "r")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Stop() })
	testRedis(t, r)
	if strings.ContainsAny(first.URL("postgres")+r.URL(), "' ") {
		t.Errorf("not to be quoted in a shell: %s %s", first.URL("postgres"), r.URL())
	}
	if err := errors.Join(first.Stop(), r.Stop(), os.Rename(odd, long)); err != nil {
		t.Fatal(err)
	}
	second := startPostgres(t, Postgres{Dir: filepath.Join(long, "p")})
	if got := query(t, second, "SELECT kept FROM kept"); got != "yes" {
		t.Errorf("after a stop: %q, want yes", got)
	}
	if _, err := StartPostgres(t.Context(), Postgres{Dir: filepath.Join(long, "p")}); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("two servers on one folder: %v, want in use", err)
	}
}

func TestPostgresSaysWhyItDidNotStart(t *testing.T) {
	t.Parallel()
	_, err := StartPostgres(t.Context(), Postgres{Settings: map[string]string{"no_such_setting": "1", "fsync": "off"}})
	if err == nil || !strings.Contains(err.Error(), "no_such_setting") {
		t.Errorf("error %v does not name the setting", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := StartPostgres(ctx, Postgres{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled start: %v", err)
	}
}

func TestEmbeddedRedis(t *testing.T) {
	t.Parallel()
	url, stop, err := startEmbedded()
	if err != nil {
		t.Fatal(err)
	}
	client := clientOf(t, url)
	expires(t, client)
	for _, password := range []string{"", "guessed"} { // others of this machine
		other := redis.NewClient(&redis.Options{Addr: client.Options().Addr, Password: password})
		if err := other.Get(t.Context(), "long").Err(); err == nil || errors.Is(err, redis.Nil) {
			t.Errorf("with the password %q: %v", password, err)
		}
		_ = other.Close()
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if err := client.Ping(t.Context()).Err(); err == nil {
		t.Error("a stopped server answered")
	}
}

func clientOf(t *testing.T, url string) *redis.Client {
	t.Helper()
	options, err := redis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	options.MaxRetries = -1
	client := redis.NewClient(options)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func expires(t *testing.T, client *redis.Client) {
	t.Helper()
	if err := client.Set(t.Context(), "short", 1, 50*time.Millisecond).Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the key expired", func() bool { return errors.Is(client.Get(t.Context(), "short").Err(), redis.Nil) })
}

func testRedis(t *testing.T, s *RedisServer) {
	t.Helper()
	client := clientOf(t, s.URL())
	expires(t, client)
	if err := client.Set(t.Context(), "long", 1, 0).Err(); err != nil {
		t.Fatal(err)
	}
	s.Kill()
	if err := client.Ping(t.Context()).Err(); err == nil {
		t.Error("a killed server answered")
	}
	for range 2 { // once from dead, once from running
		if err := s.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it answers", func() bool { return client.Ping(t.Context()).Err() == nil })
		if err := client.Get(t.Context(), "long").Err(); !errors.Is(err, redis.Nil) {
			t.Errorf("a key outlived the server: %v", err)
		}
	}
}

func TestSweepRemovesOnlyWhatNobodyHolds(t *testing.T) {
	t.Parallel()
	held, left := temporary(t), temporary(t)
	if err := left.lock.Close(); err != nil { // as when its process was killed
		t.Fatal(err)
	}
	old := time.Now().Add(-time.Hour)
	for _, f := range []*folder{held, left} {
		if err := os.Chtimes(f.lock.Name(), old, old); err != nil {
			t.Fatal(err)
		}
	}
	sweep()
	if _, err := os.Stat(held.path); err != nil {
		t.Errorf("a folder in use was swept: %v", err)
	}
	if _, err := os.Stat(left.path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a folder left behind was not swept: %v", err)
	}
}

func temporary(t *testing.T) *folder {
	t.Helper()
	f := &folder{}
	if err := f.open(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.close() })
	return f
}

func startPostgres(t *testing.T, cfg Postgres) *PostgresServer {
	t.Helper()
	settings := map[string]string{"fsync": "off"}
	maps.Copy(settings, cfg.Settings)
	cfg.Settings = settings
	s, err := StartPostgres(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Stop() })
	return s
}

// query runs statements and returns the only value of the last one.
func query(t *testing.T, s *PostgresServer, sql string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	results, err := conn.PgConn().Exec(t.Context(), sql).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	return string(results[len(results)-1].Rows[0][0])
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	within := time.After(time.Minute)
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for !is() {
		select {
		case <-within:
			t.Fatalf("waited in vain: %s", what)
		case <-tick.C:
		}
	}
}
