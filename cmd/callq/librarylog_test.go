package main

import (
	"strings"
	"testing"
)

// A command that finds Redis away says so itself, and go-redis nothing beside it.
func TestRedisAwayIsSaidOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, args := range []string{"doctor", "maintain sweep", "dispatch --once"} {
		p := w.spawn(append(strings.Fields(args), "--timeout", "2s")...) // a process of its own, as below
		p.exits(exitUnreachable)
		said := p.log.String()
		if !strings.Contains(said, "callq: waiting up to 2s for Redis") {
			t.Errorf("%s does not say that Redis is away: %s", args, said)
		}
		for line := range strings.Lines(said) {
			if !strings.HasPrefix(line, "callq: ") {
				t.Errorf("%s: not callq's own words: %s", args, line)
			}
		}
	}
}

// What net/http says of an answer that it did not ask for is a line of the log like any other, of level debug.
func TestLibrariesReportToTheLog(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"debug", "info"} {
		t.Run(level, func(t *testing.T) {
			t.Parallel()
			w, _ := newWorld(t).withRedis()
			w.config = atAnyPort + "log: {level: " + level + "}\n"
			url := "http://" + answers(t, strings.Repeat("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 2))
			p := w.spawn("serve").ready() // a process of its own: the standard logger is one for all
			id := w.call(url)
			w.done(id)
			if level == "debug" {
				p.says(`level=DEBUG msg="library reported" message="Unsolicited response`)
			}
			p.kill()
			for line := range strings.Lines(p.log.String()) {
				if !strings.HasPrefix(line, "time=") {
					t.Errorf("not a line of the log: %s", line)
				}
			}
		})
	}
}
