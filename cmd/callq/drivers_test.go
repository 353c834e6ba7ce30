package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// driver is what a block of docs/producers.md needs that is neither SQL nor Go.
type driver struct {
	interpreter string
	has         []string // arguments for it: it exits 0 where all is there
	around      string   // a file of testdata, in which the block is run; it prints what was sent
	sends       string   // the block of SQL that says what is sent; "" where the block itself does
}

// drives runs a block of the page as the page's login, and returns how many calls it has made: one, none
// where no interpreter on PATH has the driver. Then the page's SQL, which is run everywhere, must do.
func (p *page) drives(block string) int {
	p.t.Helper()
	d := map[string]driver{
		"python": {"python3", []string{
			"-c", "from django.db.backends.postgresql import base; from django.db.models import JSONField",
		}, "django.py", "sql django"},
		"ruby": {"ruby", []string{"-e", "require 'active_record'; require 'pg'"}, "rails.rb", "sql rails"},
		"js":   {"node", []string{"-e", "require('pg')"}, "node.js", ""},
	}[block]
	around, err := os.ReadFile(filepath.Join("testdata", d.around))
	must(p.t, err)
	before, after, found := strings.Cut(string(around), "the page's block\n")
	if !found {
		p.t.Fatalf("%s has no place for the page's block", d.around)
	}
	script := filepath.Join(p.t.TempDir(), "page"+filepath.Ext(d.around))
	must(p.t, os.WriteFile(script, []byte(before+"\n"+p.block(block)+after), 0o600))
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		file := filepath.Join(dir, d.interpreter)
		if _, _, err := p.interpret(file, d.has...); err != nil {
			continue
		}
		sent, errs, err := p.interpret(file, script)
		if err != nil {
			p.t.Fatalf("%s, run by %s: %v\n%s%s", d.around, file, err, sent, errs)
		}
		newer := strings.NewReplacer("::jsonb", "", `, "created_at", "run_at"`, "") // than Django 4.2, Rails 7.1
		if d.sends != "" && words(newer.Replace(sent)) != words(newer.Replace(p.block(d.sends))) {
			p.t.Errorf("the page's %s sent\n%s\nwhere the page says\n%s", block, sent, p.block(d.sends))
		}
		p.t.Logf("the page's %s was run by %s, and its SQL", block, file)
		return 1
	}
	p.t.Logf("no %s on PATH has the driver: of the page's %s only the SQL was run", d.interpreter, block)
	return 0
}

func words(text string) string { return strings.Join(strings.Fields(text), " ") }

// interpret runs an interpreter that finds the page's login in its environment.
func (p *page) interpret(file string, args ...string) (stdout, stderr string, err error) {
	p.t.Helper()
	login, err := pgconn.ParseConfig(p.database)
	must(p.t, err)
	cmd := exec.CommandContext(p.t.Context(), file, args...)
	global := filepath.Join(filepath.Dir(file), "../lib/node_modules") // where npm install -g puts it
	cmd.Env = append(os.Environ(), "PGHOST="+login.Host, "PGPORT="+strconv.Itoa(int(login.Port)), "PGUSER="+login.User,
		"PGPASSWORD="+login.Password, "PGDATABASE="+login.Database,
		"NODE_PATH="+os.Getenv("NODE_PATH")+string(filepath.ListSeparator)+global)
	var errs buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	return string(out), errs.String(), err
}
