package local

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// In a process started by TestOrphansEnd: start both servers below this folder, print their URLs
// and wait to be killed.
const holdVariable = "CALLQ_TEST_HOLD"

func TestMain(m *testing.M) {
	if dir := os.Getenv(holdVariable); dir != "" {
		if err := hold(dir); err != nil {
			panic(err)
		}
		return
	}
	os.Exit(m.Run())
}

type held struct{ Postgres, Redis string }

func hold(dir string) error {
	ctx := context.Background()
	postgres, err := StartPostgres(ctx, Postgres{Dir: filepath.Join(dir, "postgres")})
	if err != nil {
		return err
	}
	redis, err := StartRedis(ctx, Redis{Dir: filepath.Join(dir, "redis")})
	if err != nil {
		return err
	}
	if err := json.NewEncoder(os.Stdout).Encode(held{postgres.URL("postgres"), redis.URL()}); err != nil {
		return err
	}
	_, err = os.Stdin.Read(make([]byte, 1))
	return errors.Join(err, postgres.Stop(), redis.Stop())
}

// A process is killed with SIGKILL; its servers and all their children are to end. They hold the
// locks of their folders, so that the locks tell. The folder is closed to others: as root, Postgres runs in a user
// namespace there.
func TestOrphansEnd(t *testing.T) {
	t.Parallel()
	users := []identity{{name: "this user"}}
	if os.Geteuid() == 0 { // and an ordinary one
		for _, id := range identities() {
			if id.name == "nobody" {
				users = append(users, id)
			}
		}
		if len(users) != 2 {
			t.Error("there is no user nobody")
		}
	}
	for _, as := range users {
		t.Run("as "+as.name, func(t *testing.T) {
			t.Parallel()
			f := temporary(t) // others can reach it
			dir := filepath.Join(f.path, "held")
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if as.attr.Credential != nil {
				if err := as.own(dir); err != nil {
					t.Fatal(err)
				}
			}
			cmd := as.command(t.Context(), Program{Dir: f.path}, f.path, copyOfThisProgram(t, f.path))
			cmd.Env = append(os.Environ(), holdVariable+"="+dir)
			cmd.Stderr = os.Stderr
			if _, err := cmd.StdinPipe(); err != nil {
				t.Fatal(err)
			}
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			line, err := bufio.NewReader(out).ReadString('\n')
			var urls held
			if err := errors.Join(err, json.Unmarshal([]byte(line), &urls)); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			if !strings.Contains(urls.Postgres, dir) || !strings.Contains(urls.Redis, dir) {
				t.Errorf("URLs %+v, want sockets in %s", urls, dir)
			}
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"postgres", "redis"} {
				eventually(t, name+" ended", func() bool {
					lock, err := lockFile(filepath.Join(dir, name), "lock")
					_ = lock.Close() // nil while it is locked
					return err == nil
				})
			}
			if err := cmd.Wait(); err == nil {
				t.Error("the process was not killed")
			}
			startPostgres(t, Postgres{Dir: filepath.Join(dir, "postgres")})
		})
	}
}

// copyOfThisProgram: go test's own folder is closed to other users.
func copyOfThisProgram(t *testing.T, dir string) string {
	t.Helper()
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	writeProgram(t, filepath.Join(dir, "program"), self)
	return "program"
}
