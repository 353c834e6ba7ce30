package console_test

import (
	"html"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/callq/callq/internal/pgtest"
)

// The list goes to its end and back, 100 calls a page, as links say.
func TestPaging(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	if _, err := pool.Exec(t.Context(), `INSERT INTO call_queue (queue) SELECT 'q' || i % 2 FROM generate_series(1, 500) i`); err != nil {
		t.Fatal(err)
	}
	site := newSite(t, pool, plentiful)
	for filter, all := range map[string]int{"": 500, "?queue=q1": 250} {
		var down []string // the ids of each page
		seen, last := 0, ""
		for at := "/calls" + filter; at != ""; {
			_, text := site.ask(http.MethodGet, at)
			ids := idsIn(text)
			if len(ids) > 100 {
				t.Errorf("%s: %d calls", at, len(ids))
			}
			seen, down, last = seen+len(ids), append(down, strings.Join(ids, " ")), at
			at = link(text, "next")
		}
		if seen != all || len(down) != (all+99)/100 {
			t.Errorf("calls%s: %d calls on %d pages, want %d", filter, seen, len(down), all)
		}
		for page := len(down) - 1; page >= 0; page-- {
			_, text := site.ask(http.MethodGet, last)
			if got := strings.Join(idsIn(text), " "); got != down[page] {
				t.Errorf("back on page %d of calls%s: %s, want %s", page, filter, got, down[page])
			}
			last = link(text, "prev")
		}
		if last != "" {
			t.Errorf("calls%s: %s is newer than the newest", filter, last)
		}
	}
}

func idsIn(text string) []string {
	var ids []string
	for _, found := range regexp.MustCompile(`href="/calls/(\d+)"`).FindAllStringSubmatch(text, -1) {
		ids = append(ids, found[1])
	}
	return ids
}

// link is where the link of this kind leads; empty: there is none.
func link(text, rel string) string {
	found := regexp.MustCompile(`href="([^"]*)" rel="` + rel + `"`).FindStringSubmatch(text)
	if found == nil {
		return ""
	}
	return html.UnescapeString(found[1])
}
