package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// post has callq do something, as scripts do.
func (w *world) post(ctx context.Context, action string, body any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, w.site+"/api/"+action, bytes.NewReader(text))
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(response.Body)
		return fmt.Errorf("%s: %s: %s", action, response.Status, text)
	}
	return nil
}

// button is one that is pressed: a link on a page leads to a form.
type button struct {
	name   string
	page   string
	action string            // queues/pause
	within string            // where on the page, where several links lead to the action
	link   string            // and what the link's address has too
	fill   map[string]string // fields beside the reason
	typed  bool              // the number of calls must be typed
	before string            // SQL that brings about what the button is for
	did    string            // SQL that is true once it is done; $1 is the call's id, where there is one
	id     int64
}

// presses are all buttons, in an order in which each has something to do.
func (s *suite) presses(ctx context.Context) ([]button, error) {
	ids := map[string]int64{}
	for name, where := range map[string]string{
		"failed":  `status = 'failed' AND queue = 'partner-03'`,
		"waiting": `status = 'new' AND queue = 'render'`,
		"done":    `status = 'done' AND queue = 'partner-03'`,
		"later":   `status = 'new' AND queue = 'partner-01'`,
	} {
		id, err := one[int64](ctx, s.world, `SELECT max(id) FROM call_queue WHERE `+where)
		if err != nil {
			return nil, err
		}
		ids[name] = id
	}
	ofCall := func(verb, which, did string) button {
		return button{name: verb + " a call", page: fmt.Sprint("/calls/", ids[which]), action: "calls/" + verb, did: did, id: ids[which]}
	}
	paused := func(what, name, key string) string {
		return fmt.Sprintf("SELECT count(*) = 1 FROM callq.call_pauses WHERE what = '%s' AND name = '%s' AND key = '%s'", what, name, key)
	}
	resumed := func(what, name, key string) string {
		return strings.Replace(paused(what, name, key), "= 1", "= 0", 1)
	}
	none := func(where string) string { return "SELECT count(*) = 0 FROM call_queue WHERE " + where }
	return []button{
		{
			name: "pause a queue", page: "/queues/payments", action: "queues/pause", fill: map[string]string{"for": "1h"},
			did: paused("queue", "payments", "") + " AND until BETWEEN now() + interval '50 minutes' AND now() + interval '1 hour'",
		},
		{name: "resume a queue", page: "/queues/payments", action: "queues/resume", did: resumed("queue", "payments", "")},
		{name: "pause a limit", page: "/limits/hubspot", action: "limits/pause", did: paused("limit", "hubspot", "") + " AND until = 'infinity'"},
		{name: "resume a limit", page: "/limits/hubspot", action: "limits/resume", did: resumed("limit", "hubspot", "")},
		{name: "pause a key", page: "/keys/acct_1", action: "limits/pause", link: "shopify", did: paused("limit", "shopify", "acct_1")},
		{name: "resume a key", page: "/keys/acct_1", action: "limits/resume", link: "shopify", did: resumed("limit", "shopify", "acct_1")},
		{
			name: "set a rate", page: "/limits/renderers", action: "limits/set", fill: map[string]string{"rate": "60"},
			did: "SELECT rate = 60 AND config IS NOT NULL FROM callq.call_limits WHERE name = 'renderers'",
		},
		{
			name: "reset a rate", page: "/limits/renderers", action: "limits/reset",
			did: "SELECT rate = 50 AND config IS NULL FROM callq.call_limits WHERE name = 'renderers'",
		},
		{
			name: "open a limit", page: "/limits/partner-api-00", action: "limits/open",
			before: "UPDATE callq.call_limits SET missing_until = now() + interval '1 hour', known_at = now() WHERE name = 'partner-api-00'",
			did:    "SELECT missing_until IS NULL FROM callq.call_limits WHERE name = 'partner-api-00'",
		},
		ofCall("retry", "failed", "SELECT status <> 'failed' AND retried_after = 3 FROM call_queue WHERE id = $1"),
		ofCall("cancel", "waiting", "SELECT status = 'cancelled' FROM call_queue WHERE id = $1"),
		ofCall("delete", "done", "SELECT count(*) = 0 FROM call_queue WHERE id = $1"),
		ofCall("run", "later", "SELECT run_at <= now() FROM call_queue WHERE id = $1"),
		{
			name: "retry dead letters of a shape", page: calls("status:failed queue:partner-04"), action: "calls/retry", link: "shape=unexpected",
			did: none("status = 'failed' AND queue = 'partner-04' AND task = 'http' AND error_message = 'unexpected EOF'"),
		},
		{
			name: "retry all dead letters of a queue", page: calls("status:failed queue:partner-05"), action: "calls/retry", within: "main > p.acts",
			did: none("status = 'failed' AND queue = 'partner-05' AND retried_after IS NULL"),
		},
		{name: "cancel all that waits", page: "/queues/email", action: "calls/cancel", typed: true, did: none("status IN ('new', 'error') AND queue = 'email'")},
		{
			name: "delete all that was cancelled", page: calls("status:cancelled queue:email"), action: "calls/delete", typed: true,
			did: none("status = 'cancelled' AND queue = 'email'"),
		},
		{
			name: "run all that waits", page: calls("status:waiting queue:partner-02"), action: "calls/run",
			did: none("status IN ('new', 'error') AND queue = 'partner-02' AND run_at > now() + interval '1 minute'"),
		},
	}, nil
}

// buttons presses each, and reads back what it did.
func (s *suite) buttons(ctx context.Context) error {
	list, err := s.presses(ctx)
	if err != nil {
		return err
	}
	for _, b := range list {
		begun := time.Now()
		said, err := s.press(ctx, b)
		switch {
		case errors.Is(err, context.DeadlineExceeded), errors.Is(err, errNever):
			s.fault("%s: %v", b.name, err)
			continue
		case err != nil:
			return fmt.Errorf("%s: %w", b.name, err)
		}
		fmt.Printf("%s, in %.1f s: %s\n", b.name, time.Since(begun).Seconds(), said)
		for _, text := range s.browser.complained() {
			s.fault("%s: the browser complains: %s", b.name, text)
		}
	}
	return nil
}

// press presses a button, fills in its form and sends it. It returns what the page says then.
func (s *suite) press(ctx context.Context, b button) (said string, err error) {
	if b.before != "" {
		if _, err := s.pool.Exec(ctx, b.before); err != nil {
			return "", err
		}
	}
	if b.typed {
		if err := s.mistype(b); err != nil {
			return "", err
		}
	}
	reason := "the suite: " + b.name
	if err := s.openForm(b); err != nil {
		return "", err
	}
	for field, value := range b.fill {
		if err := s.browser.write(fmt.Sprintf(`form.act [name=%q]`, field), value); err != nil {
			return "", err
		}
	}
	if err := s.typeNumber(b); err != nil {
		return "", err
	}
	if err := s.browser.write(`form.act [name="reason"]`, reason); err != nil {
		return "", err
	}
	if err := s.browser.click(`form.act button`); err != nil {
		return "", err
	}
	if err := s.browser.until(`document.readyState === "complete" && !document.querySelector("form.act")`); err != nil {
		said, _ = eval[string](s.browser, `document.querySelector("main").innerText`)
		return "", fmt.Errorf("%w: %.200s", err, said)
	}
	if said, err = eval[string](s.browser, `document.querySelector("main").innerText.replaceAll("\n", " ")`); err != nil {
		return "", err
	}
	var args []any
	if b.id != 0 {
		args = []any{b.id}
	}
	for what, ask := range map[string]func() (bool, error){
		"it did not come about": func() (bool, error) { return s.holds(ctx, time.Minute, b.did, args...) },
		"the audit has it not": func() (bool, error) {
			return s.holds(ctx, time.Second, "SELECT count(*) > 0 FROM callq.call_audit WHERE reason = $1", reason)
		},
	} {
		held, err := ask()
		if err != nil {
			return "", err
		}
		if !held {
			s.fault("%s: %s; the page says: %s", b.name, what, said)
		}
	}
	return said, nil
}

// openForm opens the page, and presses the button.
func (s *suite) openForm(b button) error {
	if _, err := s.browser.open(s.site + b.page); err != nil {
		return err
	}
	// By script: the page may be replaced between finding the link and pressing it.
	form := fmt.Sprintf(`location.pathname === "/do/%s"`, b.action)
	link := fmt.Sprintf(`[...document.querySelectorAll('%s a.button[href*="/do/%s?"]')].find(a => a.href.includes(%q))`, b.within, b.action, b.link)
	return s.browser.until(fmt.Sprintf(`(a => {
		if (a && !window.pressed) { window.pressed = true; a.click(); }
		return %s && document.readyState === "complete" && !!document.querySelector("form.act button");
	})(%s)`, form, link))
}

// mistype gives a form a number of calls that is too small, which is refused.
func (s *suite) mistype(b button) error {
	if err := s.openForm(b); err != nil {
		return err
	}
	for field, value := range map[string]string{"expect": "1", "reason": "mistyped"} {
		if err := s.browser.write(fmt.Sprintf(`form.act [name=%q]`, field), value); err != nil {
			return err
		}
	}
	if err := s.browser.click(`form.act button`); err != nil {
		return err
	}
	s.comes(b.name+" is refused where another number was typed", `document.readyState === "complete" && document.querySelector("h1").textContent === "Conflict"`)
	s.browser.complained() // of the status 409
	return nil
}

// typeNumber types how many calls these are, where the form asks for it.
func (s *suite) typeNumber(b button) error {
	text, err := eval[string](s.browser, `(i => i ? i.closest("label").textContent.match(/\d+/)[0] : "")(document.querySelector('form.act [name="expect"]:not([type="hidden"])'))`)
	if err != nil {
		return err
	}
	if (text != "") != b.typed {
		s.fault("%s: the number of calls that must be typed is %q", b.name, text)
	}
	if text == "" {
		return nil
	}
	return s.browser.write(`form.act [name="expect"]`, text)
}
