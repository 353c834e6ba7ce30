// Servers runs a command with a Postgres and a Redis of its own:
//
//	go run ./internal/local/servers -- go test ./...
//
// The command finds them in TEST_DATABASE_URL and TEST_REDIS_URL, and in TEST_TMPDIR where servers of its own
// may keep their files. Both end with it, their folders
// are removed, and its exit code is passed on. They are made for speed: what they hold does not
// survive a crash of the machine.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/callq/callq/internal/local"
)

func main() {
	args := os.Args[1:]
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	if len(args) == 0 {
		fmt.Fprintln(os.Stderr, "usage: servers [--] COMMAND [ARGUMENT...]")
		os.Exit(2)
	}
	code, err := run(args)
	if err != nil {
		fmt.Fprintln(os.Stderr, "servers:", err)
	}
	os.Exit(code)
}

func run(args []string) (code int, err error) {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer cancel()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	environ := os.Environ() // the command's: its own files stay where they are
	if err := holdInMemory(); err != nil {
		return 1, err
	}

	postgres, err := local.StartPostgres(ctx, local.Postgres{Logger: log, Settings: map[string]string{
		"fsync": "off", "full_page_writes": "off", "max_connections": "400", "shared_buffers": "256MB",
	}})
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, postgres.Stop()) }()
	redis, err := local.StartRedis(ctx, local.Redis{Logger: log, Install: true})
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, redis.Stop()) }()

	cmd := exec.Command(args[0], args[1:]...) //nolint:noctx // signals are passed on instead
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(environ,
		"TEST_DATABASE_URL="+postgres.URL("postgres"), "TEST_REDIS_URL="+redis.URL(), "TEST_TMPDIR="+os.TempDir())
	if err := cmd.Start(); err != nil {
		return 127, err
	}
	go passOn(signals, cmd.Process)
	return exitCode(cmd.Wait())
}

// holdInMemory makes the servers keep their files in /dev/shm, where there is one with room. Tests make
// and drop databases by the hundred, and ext4 takes most of their time for it.
func holdInMemory() error {
	const folder, room = "/dev/shm", 4 << 30
	var fs syscall.Statfs_t
	if os.Getenv("TMPDIR") != "" || syscall.Statfs(folder, &fs) != nil || fs.Bavail*uint64(fs.Bsize) < room {
		return nil
	}
	return os.Setenv("TMPDIR", folder)
}

// passOn sends to the command what this process is sent, but for Ctrl-C, which a terminal sends
// to both. It ends with the process.
func passOn(signals <-chan os.Signal, to *os.Process) {
	terminal, err := os.Open("/dev/tty")
	if err == nil {
		_ = terminal.Close()
	}
	for sig := range signals {
		if sig != os.Interrupt || err != nil {
			_ = to.Signal(sig) // fails only if it has ended
		}
	}
}

// exitCode is the command's; as a shell does, 128 and the signal's number if one ended it.
func exitCode(err error) (int, error) {
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok {
		if err != nil {
			return 1, err
		}
		return 0, nil
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal()), nil
	}
	return exit.ExitCode(), nil
}
