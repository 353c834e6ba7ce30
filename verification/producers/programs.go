package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/callq/callq/verification/packages"
)

// program is how a producer's program is started: a step's name follows.
type program struct {
	dir     string
	command []string
}

// maker builds or installs a producer's program. folder holds its source, temp is for what it builds.
type maker func(ctx context.Context, folder, temp string) (program, error)

// How long building or installing a program may take, and each of its steps.
const (
	makeWithin = 10 * time.Minute
	stepWithin = 2 * time.Minute
)

// goProgram builds a program that has a go.mod of its own.
func goProgram(ctx context.Context, folder, temp string) (program, error) {
	binary := filepath.Join(temp, filepath.Base(folder))
	return program{dir: folder, command: []string{binary}}, packages.Go(ctx, folder, binary)
}

// generatedGo builds a program whose code go generate makes in part: in a copy, so that the repository stays as it is.
func generatedGo(ctx context.Context, folder, temp string) (program, error) {
	source := filepath.Join(temp, "source", filepath.Base(folder))
	if err := os.CopyFS(source, os.DirFS(folder)); err != nil {
		return program{}, err
	}
	if err := packages.RunIn(ctx, source, "env", "GOWORK=off", "GOFLAGS=", "go", "mod", "download"); err != nil {
		return program{}, fmt.Errorf("%w: %w", packages.ErrMissing, err)
	}
	if err := packages.RunIn(ctx, source, "env", "GOWORK=off", "GOFLAGS=", "go", "generate", "."); err != nil {
		return program{}, err
	}
	p, err := goProgram(ctx, source, temp)
	p.dir = folder
	return p, err
}

// javaProgram compiles a folder's Java, whose main is Producer's, against Debian's packages, which the file apt names, and their jars, which the file
// jars names.
func javaProgram(ctx context.Context, folder, temp string) (program, error) {
	names, err := os.ReadFile(filepath.Join(folder, "apt"))
	if err != nil {
		return program{}, err
	}
	jars, err := os.ReadFile(filepath.Join(folder, "jars"))
	if err != nil {
		return program{}, err
	}
	if err := packages.Debian(ctx, strings.Fields(string(names))...); err != nil {
		return program{}, err
	}
	classes := filepath.Join(temp, filepath.Base(folder))
	path := classes
	for _, jar := range strings.Fields(string(jars)) {
		path += ":/usr/share/java/" + jar + ".jar"
	}
	sources, err := filepath.Glob(filepath.Join(folder, "*.java"))
	if err != nil {
		return program{}, err
	}
	compile := append([]string{"/usr/bin/javac", "-d", classes, "-cp", path}, sources...)
	if err := packages.RunIn(ctx, folder, compile...); err != nil {
		return program{}, err
	}
	return program{dir: folder, command: []string{"/usr/bin/java", "-cp", path, "Producer"}}, nil
}

// debianScript runs a script whose packages the folder's file apt names. They are installed for Debian's own
// interpreter: another one may come first in PATH.
func debianScript(interpreter, script string) maker {
	return func(ctx context.Context, folder, _ string) (program, error) {
		names, err := os.ReadFile(filepath.Join(folder, "apt"))
		if err != nil {
			return program{}, err
		}
		if err := packages.Debian(ctx, strings.Fields(string(names))...); err != nil {
			return program{}, err
		}
		path := filepath.Join("/usr/bin", interpreter)
		if _, err := os.Stat(path); err != nil {
			return program{}, err
		}
		return program{dir: folder, command: []string{path, filepath.Join(folder, script)}}, nil
	}
}

// nodeScript runs producer.mjs where npm has installed the packages of package.json, and has run its script build if it has
// one: in the user's cache, so that the repository stays as it is.
func nodeScript(ctx context.Context, folder, _ string) (program, error) {
	dir, err := packages.NPM(ctx, folder)
	if err != nil {
		return program{}, err
	}
	if err := packages.RunIn(ctx, dir, "npm", "run", "--if-present", "build"); err != nil {
		return program{}, err
	}
	return program{dir: dir, command: []string{"node", filepath.Join(dir, "producer.mjs")}}, nil
}

// answer is what a program prints about a step. Each step fills a few of these.
type answer struct {
	Version  string          `json:"version"`
	Skip     string          `json:"skip"` // why the ORM has no such step
	ID       callID          `json:"id"`
	IDs      []callID        `json:"ids"`
	Loaded   callID          `json:"loaded"`
	SQLState string          `json:"sqlstate"` // of a refusal, or ok
	Status   string          `json:"status"`
	Result   json.RawMessage `json:"result"`
	Tables   []string        `json:"tables"`
}

// callID is an id, which some ORMs print as a number and others as a string. Of a call that was skipped it is empty.
type callID string

func (id *callID) UnmarshalJSON(text []byte) error {
	printed := strings.Trim(string(text), `"`)
	if printed == "null" || printed == "0" || printed == "" {
		*id = ""
		return nil
	}
	if _, err := strconv.ParseInt(printed, 10, 64); err != nil {
		return fmt.Errorf("an id: %w", err)
	}
	*id = callID(printed)
	return nil
}

// running is a program that is at a step.
type running struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	stderr *strings.Builder
	cancel context.CancelFunc
}

// start begins a step.
func (p program) start(ctx context.Context, environ []string, args ...string) (*running, error) {
	ctx, cancel := context.WithTimeout(ctx, stepWithin)
	r := &running{stderr: &strings.Builder{}, cancel: cancel}
	line := append(append([]string{}, p.command...), args...)
	r.cmd = exec.CommandContext(ctx, line[0], line[1:]...)
	r.cmd.Dir, r.cmd.Stderr = p.dir, r.stderr
	r.cmd.Env = append(os.Environ(), environ...)
	r.cmd.WaitDelay = time.Second
	var err error
	if r.in, err = r.cmd.StdinPipe(); err != nil {
		cancel()
		return nil, err
	}
	stdout, err := r.cmd.StdoutPipe()
	if err != nil {
		cancel()
		return nil, err
	}
	r.out = bufio.NewReader(stdout)
	if err := r.cmd.Start(); err != nil {
		cancel()
		return nil, err
	}
	return r, nil
}

// read returns the next line of JSON. Other lines, which some tools print, are passed over.
func (r *running) read() (answer, error) {
	for {
		line, err := r.out.ReadString('\n')
		if strings.HasPrefix(line, "{") {
			var a answer
			if err := json.Unmarshal([]byte(line), &a); err != nil {
				return a, fmt.Errorf("it printed %q: %w", line, err)
			}
			return a, nil
		}
		if err != nil {
			return answer{}, errors.Join(fmt.Errorf("it printed no JSON: %w", err), r.end())
		}
	}
}

// end waits for the program's end.
func (r *running) end() error {
	defer r.cancel()
	_ = r.in.Close()
	_, _ = io.Copy(io.Discard, r.out)
	if err := r.cmd.Wait(); err != nil {
		return fmt.Errorf("%w: %s", err, packages.LastLines(r.stderr.String()))
	}
	return nil
}

// step runs a step to its end.
func (p program) step(ctx context.Context, environ []string, args ...string) (answer, error) {
	r, err := p.start(ctx, environ, args...)
	if err != nil {
		return answer{}, err
	}
	a, err := r.read()
	if err != nil {
		return a, err
	}
	return a, r.end()
}
