package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/callq/callq/internal/local"
)

// block is a fenced block of a document.
type block struct {
	line int // of its fence
	kind string
	text string
}

// blocksIn finds the fenced blocks of a document. One that is not closed reaches to its end.
func blocksIn(document string) []block {
	var blocks []block
	inside := false
	n := 0
	for line := range strings.Lines(document) {
		n++
		fence, found := strings.CutPrefix(strings.TrimSpace(line), "```")
		switch {
		case found && inside:
			inside = false
		case found:
			inside = true
			blocks = append(blocks, block{line: n, kind: fence})
		case inside:
			blocks[len(blocks)-1].text += line
		}
	}
	return blocks
}

// The documents' commands work: blocks marked sh are run, those of a document in order and in one shell,
// in a folder of their own, with callq on PATH, an empty database and a Redis. What cannot be run here
// (Docker, systemctl, what reaches the network) is marked console, with its prompts. A block of any other
// kind must be one that is known, so that none is passed over unseen.
func TestDocs(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(files) == 0 {
		t.Fatalf("no documents: %v", err)
	}
	for _, file := range append(files, "../../README.md") {
		name := filepath.Base(file)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(file)
			must(t, err)
			var script strings.Builder
			for _, b := range blocksIn(string(text)) {
				if b.kind == "sh" {
					fmt.Fprintf(&script, "echo '== %s:%d'\n%s\n", name, b.line, b.text)
				} else if err := b.check(); err != nil {
					t.Errorf("%s:%d: %v", name, b.line, err)
				}
			}
			if script.Len() > 0 {
				runScript(t, script.String())
			}
		})
	}
}

// check holds a block that is not run against its kind.
func (b block) check() error {
	switch kind, _, _ := strings.Cut(b.kind, " "); kind { // what follows is a name, for other tests
	case "go", "sql", "text", "csv", "python", "ruby", "js": // those of producers.md: TestProducersPage
		return nil
	case "console":
		if !strings.HasPrefix(b.text, "$ ") && !strings.HasPrefix(b.text, "# ") {
			return errors.New("a console block begins with its prompt; mark it sh to have it run")
		}
		return nil
	case "json":
		if !json.Valid([]byte(b.text)) {
			return errors.New("not JSON")
		}
		return nil
	case "yaml":
		decoder := yaml.NewDecoder(strings.NewReader(b.text))
		for {
			if err := decoder.Decode(new(any)); errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return err
			}
		}
	}
	return fmt.Errorf("a block of kind %q: mark it sh to have it run, else console, text, a language that no shell runs, json or yaml", b.kind)
}

// endJobs ends what a script left running, and reaps it.
const endJobs = `end() {
	code=$?
	jobs -p >"$HOME/.jobs"
	while read -r job; do kill "$job" || true; done <"$HOME/.jobs"
	wait
	exit $code
}
trap end EXIT
`

// runScript runs a document's commands. What they leave running is ended.
func runScript(t *testing.T, script string) {
	t.Helper()
	w, _ := newWorld(t).withRedis()
	w.empty()
	dir, bin := t.TempDir(), t.TempDir()
	must(t, os.Symlink(testBinary(t), filepath.Join(bin, "callq")))
	log, err := os.Create(filepath.Join(bin, "log")) // a file: what is left running does not keep it open for us
	must(t, err)
	defer log.Close()
	cmd := exec.CommandContext(t.Context(), "sh", "-eu", "-c", endJobs+script)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	psql := findPsql(t)
	path := strings.Join([]string{bin, psql.Dir, os.Getenv("PATH")}, string(os.PathListSeparator))
	cmd.Env = append([]string{
		beCallq + "=1", "PATH=" + path,
		"HOME=" + dir, "DATABASE_URL=" + w.postgres, "REDIS_URL=" + w.redis, "CALLQ_HTTP_LISTEN=127.0.0.1:0",
		"CALLQ_HTTP_TASK_HOSTS=nowhere.invalid", // so that nothing is sent to the documents' examples
	}, psql.Env...)
	failed := cmd.Run()
	if cmd.Process != nil {
		endGroup(t, cmd.Process.Pid)
	}
	if failed != nil {
		said, _ := os.ReadFile(log.Name())
		t.Errorf("%v\n%s", failed, said)
	}
}

// endGroup ends what is left of a process group, and waits for that.
func endGroup(t *testing.T, group int) {
	t.Helper()
	_ = syscall.Kill(-group, syscall.SIGTERM) // fails if nothing is left
	eventually(t, "what a document started ends", func() bool {
		return errors.Is(syscall.Kill(-group, 0), syscall.ESRCH)
	})
}

func testBinary(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	must(t, err)
	return path
}

// findPsql finds psql, which Postgres's packages bring along.
func findPsql(t *testing.T) local.Program {
	t.Helper()
	psql, err := local.Find("postgres", []string{"psql"})
	if err != nil {
		t.Fatalf("the documents' commands need psql: %v", err)
	}
	return psql
}

func TestBlocksAreHeldAgainstTheirKind(t *testing.T) {
	t.Parallel()
	blocks := blocksIn("a\n```sh\nls\n```\n  ```console\n$ ls\n  ```\n```\nls\n```\n```bash\nls\n```\n```yaml\na: [\n```\n```json\n{\n```\n```console\nls\n")
	var kinds []string
	for _, b := range blocks {
		kinds = append(kinds, b.kind)
		if good := b.check() == nil; good != (b.line == 5) {
			t.Errorf("line %d, %q: %v", b.line, b.kind, b.check())
		}
	}
	if want := []string{"sh", "console", "", "bash", "yaml", "json", "console"}; !slices.Equal(kinds, want) {
		t.Errorf("kinds %q, want %q", kinds, want)
	}
	if blocks[0].text != "ls\n" {
		t.Errorf("text %q", blocks[0].text)
	}
}
