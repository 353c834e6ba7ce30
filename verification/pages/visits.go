package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// visit is a page that is opened.
type visit struct{ name, path string }

// calls is the address of a list of calls.
func calls(search string) string { return "/calls?" + url.Values{"q": {search}}.Encode() }

// list is one of each kind of page.
func (s *suite) list(ctx context.Context) ([]visit, error) {
	dead, err := one[int64](ctx, s.world, `SELECT max(id) FROM call_queue WHERE status = 'failed' AND attempts = 3`)
	if err != nil {
		return nil, err
	}
	deep, err := one[int64](ctx, s.world, `SELECT max(id) / 2 FROM call_queue`)
	if err != nil {
		return nil, err
	}
	waits, err := one[int64](ctx, s.world, `SELECT max(id) FROM call_queue WHERE queue = 'email' AND status = 'new'`)
	if err != nil {
		return nil, err
	}
	return []visit{
		{"status", "/"},
		{"limits", "/limits"},
		{"limit, full", "/limits/stripe"},
		{"limit per key", "/limits/shopify"},
		{"limit of a key", "/limits/shopify?key=acct_1"},
		{"limit, refused", "/limits/twilio"},
		{"queues", "/queues"},
		{"queue", "/queues/payments"},
		{"calls", "/calls"},
		{"dead letters", calls("status:failed")},
		{"calls, deep", calls("queue:payments") + fmt.Sprint("&before=", deep)},
		{"calls of an error", calls("error:refused since:24h")},
		{"call, dead", fmt.Sprint("/calls/", dead)},
		{"call, waiting", fmt.Sprint("/calls/", waits)},
		{"keys", "/keys"},
		{"key", "/keys/acct_1"},
		{"tasks", "/tasks"},
		{"workers", "/workers"},
		{"budgets", "/budgets"},
		{"audit", "/audit"},
		{"form, pause", "/do/queues/pause?queue=payments&back=%2F"},
		{"form, what if", "/do/limits/set?limit=stripe&try=240%2F1m&over=24h&back=%2F"},
		{"form, bulk", "/do/calls/retry?status=failed&back=%2F"},
	}, nil
}

const (
	answerGoal = 150 * time.Millisecond
	usableGoal = time.Second
	tooLong    = 3 * time.Second // of an answer: no machine excuses it
)

// visits opens each page, in each look.
func (s *suite) visits(ctx context.Context) error {
	list, err := s.list(ctx)
	if err != nil {
		return err
	}
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 1, ' ', 0)
	fmt.Fprint(out, "|\tpage\t|\tkB\t|\tanswer, ms\t|\tusable, ms\t|\t\n|\t---\t|\t--:\t|\t--:\t|\t--:\t|\t\n")
	for _, v := range list {
		answer, size, err := s.answer(ctx, v)
		if err != nil {
			return err
		}
		usable, err := s.visit(v)
		if err != nil {
			return fmt.Errorf("%s: %w", v.name, err)
		}
		slow := ""
		if answer > answerGoal || usable > usableGoal {
			slow = "slower than the goal"
		}
		if answer > answerGoal {
			sql, err := s.slowest(ctx, v)
			if err != nil {
				return err
			}
			slow += ", of " + sql
		}
		fmt.Fprintf(out, "|\t%s\t|\t%d\t|\t%d\t|\t%d\t|\t%s\n", v.name, size/1000, answer.Milliseconds(), usable.Milliseconds(), slow)
		if answer > tooLong {
			s.fault("%s: an answer takes %s", v.path, answer)
		}
	}
	return out.Flush()
}

// answer is how long the server takes to send a page whole, at the median.
func (s *suite) answer(ctx context.Context, v visit) (took time.Duration, size int, err error) {
	var all []time.Duration
	for range s.rounds {
		begun := time.Now()
		status, body, err := s.get(ctx, v.path)
		if err != nil {
			return 0, 0, err
		}
		all, size = append(all, time.Since(begun)), len(body)
		if status != http.StatusOK {
			s.fault("%s: %d\n%s", v.path, status, body)
			break
		}
	}
	return median(all), size, nil
}

// slowest asks for a page again, and returns the beginning of the statement that Postgres is seen at most meanwhile.
func (s *suite) slowest(ctx context.Context, v visit) (string, error) {
	done := make(chan error, 1)
	go func() {
		_, _, err := s.get(ctx, v.path)
		done <- err
	}()
	seen, most := map[string]int{}, "none that lasts"
	for {
		select {
		case err := <-done:
			return most, err
		case <-time.After(5 * time.Millisecond):
		}
		sql, err := one[string](ctx, s.world, activeSQL)
		if err != nil {
			return "", err
		}
		if seen[sql]++; sql != "" && seen[sql] > seen[most] {
			most = sql
		}
	}
}

// activeSQL: what has run for longest, but for what waits for a client.
const activeSQL = `
SELECT coalesce(min(regexp_replace(left(query, 160), '\s+', ' ', 'g')), '')
FROM (
    SELECT query FROM pg_stat_activity
    WHERE datname = current_database() AND state = 'active' AND pid <> pg_backend_pid() AND backend_type = 'client backend'
    ORDER BY query_start LIMIT 1
) longest`

func median(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[len(all)/2]
}

func (w *world) get(ctx context.Context, path string) (status int, body []byte, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, w.site+path, nil)
	if err != nil {
		return 0, nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	body, err = io.ReadAll(response.Body)
	return response.StatusCode, body, err
}

// visit opens a page in the browser, and returns how long it took until it could be used, at the median.
func (s *suite) visit(v visit) (time.Duration, error) {
	b := s.browser
	if err := b.look(wide); err != nil {
		return 0, err
	}
	var took []time.Duration
	for range s.rounds {
		one, err := b.open(s.site + v.path)
		if err != nil {
			return 0, err
		}
		took = append(took, one)
	}
	wrong := map[string][]string{} // the looks in which it is so
	for _, l := range all {
		found, err := b.inspect(l)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", l, err)
		}
		for _, text := range found {
			wrong[text] = append(wrong[text], l.String())
		}
	}
	for _, text := range slices.Sorted(maps.Keys(wrong)) {
		s.fault("%s: %s (%s)", v.path, text, strings.Join(wrong[text], "; "))
	}
	for _, text := range b.complained() {
		s.fault("%s: the browser complains: %s", v.path, text)
	}
	return median(took), nil
}

// inspect looks at the open page, and returns what is wrong with it.
func (b *browser) inspect(l look) (wrong []string, err error) {
	if err := b.look(l); err != nil {
		return nil, err
	}
	found, err := b.barriers()
	if err != nil {
		return nil, err
	}
	for _, barrier := range found {
		wrong = append(wrong, barrier.String())
	}
	if l.width > phone {
		return wrong, nil
	}
	fits, err := eval[struct {
		Over   float64 `json:"over"`
		Widest string  `json:"widest"`
		Head   float64 `json:"head"`
	}](b, fitsScript)
	if err != nil {
		return nil, err
	}
	if fits.Over > 0 {
		wrong = append(wrong, fmt.Sprintf("it is %.0f px too wide: %s", fits.Over, fits.Widest))
	}
	if fits.Head <= 0 || fits.Head > float64(l.height) {
		wrong = append(wrong, fmt.Sprintf("its h1 ends at %.0f px, below the first screen", fits.Head))
	}
	return wrong, nil
}

// fitsScript tells by how much the page is wider than the screen, which elements are, and where its headline ends.
const fitsScript = `(() => {
	scrollTo(0, 0);
	const root = document.documentElement, h1 = document.querySelector("h1");
	const scrolls = e => e && e !== document.body && (getComputedStyle(e).overflowX !== "visible" || scrolls(e.parentElement));
	const beyond = [...document.querySelectorAll("body *")].filter(e => e.getBoundingClientRect().right > root.clientWidth + 1 && !scrolls(e.parentElement));
	return {over: root.scrollWidth - root.clientWidth, head: h1 ? h1.getBoundingClientRect().bottom : 0,
		widest: beyond.slice(-2).map(e => e.outerHTML.slice(0, 100)).join(" | ")};
})()`
