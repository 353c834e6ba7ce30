package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
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
	case "go", "sql", "text", "csv", "python", "ruby", "js", "php", "perl", "java", "prisma": // those of producers.md and orms.md: TestProducersPage, TestORMs
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

const reference = "../../docs/cli.md"

// docs/cli.md is what the commands say of themselves. UPDATE=1 writes it anew.
func TestReference(t *testing.T) {
	t.Parallel()
	got := writeReference(rootCommand(new(app)))
	if os.Getenv("UPDATE") != "" {
		must(t, os.WriteFile(reference, []byte(got), 0o644))
	}
	want, err := os.ReadFile(reference)
	must(t, err)
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("docs/cli.md is stale: run `make docs` (-file +code):\n%s", diff)
	}
}

const referenceHead = `# Commands

Every command and flag, generated from the code (` + "`make docs`" + `); ` + "`callq COMMAND --help`" + ` says the same. Data goes to
stdout, logs and progress to stderr. What cannot be undone is asked about on a terminal, and needs ` + "`--yes`" + ` off it. What takes
more than a second says on a terminal how far it is.

## Exit codes

| code | meaning |
| --: | --- |
`

func writeReference(root *cobra.Command) string {
	var b strings.Builder
	b.WriteString(referenceHead)
	for _, c := range []struct {
		code    int
		meaning string
	}{
		{exitDone, "done; of a daemon also: drained after SIGTERM or Ctrl-C"},
		{exitFailed, "failed"},
		{exitUsage, "the command or the configuration is wrong"},
		{exitFindings, "a check found problems"},
		{exitNotFound, "there is no such call, queue or limit"},
		{exitUnreachable, "Postgres or Redis could not be reached within `--timeout` (daemons wait instead)"},
	} {
		fmt.Fprintf(&b, "| %d | %s |\n", c.code, c.meaning)
	}
	b.WriteString("\n## Flags of every command\n\n")
	writeFlags(&b, root.PersistentFlags())
	for _, cmd := range root.Commands() {
		writeCommand(&b, cmd, "##")
	}
	return b.String()
}

func writeCommand(b *strings.Builder, cmd *cobra.Command, heading string) {
	if cmd.Hidden {
		return
	}
	fmt.Fprintf(b, "\n%s %s\n\n", heading, cmd.CommandPath())
	if cmd.HasSubCommands() {
		fmt.Fprintf(b, "%s.\n", cmd.Short)
	} else {
		fmt.Fprintf(b, "    %s\n\n%s\n", cmd.UseLine(), about(cmd))
	}
	if cmd.LocalNonPersistentFlags().HasFlags() {
		b.WriteString("\n")
		writeFlags(b, cmd.LocalNonPersistentFlags())
	}
	if cmd.Name() == "completion" {
		b.WriteString("\nThe shells are bash, fish, powershell and zsh. `callq completion SHELL --help` says how to load what it prints.\n")
		return // cobra describes its verbs
	}
	for _, verb := range cmd.Commands() {
		writeCommand(b, verb, heading+"#")
	}
}

func about(cmd *cobra.Command) string {
	if cmd.Long == "" {
		return strings.TrimSuffix(cmd.Short, ".") + "."
	}
	return strings.TrimSpace(cmd.Long)
}

func writeFlags(b *strings.Builder, flags *pflag.FlagSet) {
	b.WriteString("| flag | type | default | meaning |\n| --- | --- | --- | --- |\n")
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		name := "`--" + f.Name + "`"
		if f.Shorthand != "" {
			name = "`-" + f.Shorthand + "`, " + name
		}
		kind, preset := f.Value.Type(), f.DefValue
		if preset == "[]" || preset == "false" || preset == "0" {
			preset = ""
		}
		if preset != "" {
			preset = "`" + preset + "`"
		}
		cells := []string{name, kind, preset, f.Usage}
		for _, text := range cells {
			b.WriteString(strings.TrimRight("| "+strings.ReplaceAll(text, "|", "\\|"), " ") + " ")
		}
		b.WriteString("|\n")
	})
}
