// Servers runs a command with its own Postgres and Redis:
//
//	go run -C verification ./servers [-C DIR] [-pg VERSION] COMMAND [ARGUMENT...]
//
// It runs the command in DIR, with the servers' addresses in TEST_DATABASE_URL and TEST_REDIS_URL, and a folder for files of
// more servers in TEST_TMPDIR. It exits with the command's exit code. The servers stop with the command, and their folders
// are removed. They trade safety for speed: their data does not survive a crash of the machine. With -pg 16, 17 or 18, Postgres
// is npm's of that version, which comes first on the command's PATH too.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/callq/callq/internal/local"
	"github.com/callq/callq/verification/npmpostgres"
)

func main() {
	dir := flag.String("C", "", "the folder to run the command in")
	version := flag.String("pg", "", "the version of Postgres, of npm's: 16, 17 or 18; default: the one that is installed")
	flag.Parse()
	if flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "usage: servers [-C DIR] [-pg VERSION] COMMAND [ARGUMENT...]")
		os.Exit(2)
	}
	code := 1
	err := usePostgres(*version)
	if err == nil {
		code, err = run(*dir, flag.Args())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "servers:", err)
	}
	os.Exit(code)
}

// usePostgres puts npm's Postgres of a version first on PATH, where this program and the command's look for one.
func usePostgres(version string) error {
	if version == "" {
		return nil
	}
	binaries, err := npmpostgres.Install(context.Background(), version)
	if err != nil {
		return err
	}
	return os.Setenv("PATH", binaries+string(os.PathListSeparator)+os.Getenv("PATH"))
}

// run runs the command in dir and returns its exit code.
func run(dir string, args []string) (code int, err error) {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer cancel()
	environ := os.Environ() // the command's: its own files stay where they are
	if err := holdInMemory(); err != nil {
		return 1, err
	}

	postgres, err := local.StartPostgres(ctx, local.Postgres{Settings: map[string]string{
		"fsync": "off", "full_page_writes": "off", "max_connections": "400", "shared_buffers": "256MB",
	}})
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, postgres.Stop()) }()
	redis, err := local.StartRedis(ctx, local.Redis{})
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, redis.Stop()) }()

	cmd := exec.Command(args[0], args[1:]...) //nolint:noctx // signals are passed on instead
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = dir, os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(environ, "PWD="+dir,
		"TEST_DATABASE_URL="+postgres.URL("postgres"), "TEST_REDIS_URL="+redis.URL(), "TEST_TMPDIR="+os.TempDir())
	if err := cmd.Start(); err != nil {
		return 127, err
	}
	go passOn(signals, cmd.Process)
	return exitCode(cmd.Wait())
}

// holdInMemory makes the servers keep their files in /dev/shm, if it has room. Tests make and drop databases by the hundred, and
// ext4 takes most of their time.
func holdInMemory() error {
	const folder, room = "/dev/shm", 4 << 30
	var fs syscall.Statfs_t
	if os.Getenv("TMPDIR") != "" || syscall.Statfs(folder, &fs) != nil || float64(fs.Bavail)*float64(fs.Bsize) < room {
		return nil
	}
	return os.Setenv("TMPDIR", folder)
}

// passOn forwards signals to the command, except for Ctrl-C, which a terminal sends to both.
// It ends with the process.
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

// exitCode is the command's exit code, or 128 plus the number of the signal that ended it, as in a shell.
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
