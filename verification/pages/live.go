package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// leave has the browser look at nothing.
func leave() chromedp.Action[chromedp.Void] { return chromedp.Navigate("about:blank") }

// live tries the keys, and that a page shows what changes.
func (s *suite) live(ctx context.Context) error {
	b := s.browser
	if err := b.look(wide); err != nil {
		return err
	}
	if err := s.keys(); err != nil {
		return err
	}
	if _, err := b.open(s.site + "/"); err != nil {
		return err
	}
	for _, step := range []struct{ what, script string }{
		{"the status says that it is live", `document.querySelector(".live").textContent === "live"`},
		{"the queue email has a row", `(window.since = performance.now(), ` + due + ` > 0)`},
	} {
		if !s.comes(step.what, step.script) {
			return nil
		}
	}
	before, err := eval[float64](b, due)
	if err != nil {
		return err
	}
	begun := time.Now()
	const more = 7
	if err := s.insert(ctx, wait{queue: "email", task: "http", status: "new", later: "0"}, more); err != nil {
		return err
	}
	if s.comes("the status shows calls that are inserted, without being loaded anew", fmt.Sprintf("window.since > 0 && %s === %.0f", due, before+more)) {
		fmt.Printf("calls that are inserted: on the status after %.1f s\n", time.Since(begun).Seconds())
	}
	if err := s.hide(); err != nil {
		return err
	}
	for _, text := range b.complained() {
		s.fault("live: the browser complains: %s", text)
	}
	return nil
}

// due is how many calls of email are due, by its row.
const due = `Number([...document.querySelectorAll("tbody tr")].find(r => r.querySelector('a[href$="/queues/email"]')).querySelector('[data-l="Due"]').textContent.replaceAll(/\D/g, ""))`

// comes says whether an expression gets true. If not, that is a fault.
func (s *suite) comes(what, script string) bool {
	err := s.browser.until(script)
	if err != nil {
		s.fault("it does not come that %s: %v", what, err)
	}
	return err == nil
}

// keys presses the keys that a page says it has.
func (s *suite) keys() error {
	if _, err := s.browser.open(s.site + "/queues"); err != nil {
		return err
	}
	row := func(n int) string {
		return fmt.Sprintf(`document.activeElement.closest("tr") === document.querySelectorAll("tbody tr")[%d]`, n)
	}
	for _, press := range []struct{ key, what, script string }{
		{"?", "? shows the keys", `!document.querySelector(".keys").hidden`},
		{kb.Escape, "Escape hides them", `document.querySelector(".keys").hidden`},
		{"j", "j goes to the first row", row(0)},
		{"j", "j goes on", row(1)},
		{"k", "k goes back", row(0)},
		{"/", "/ goes to the search", `document.activeElement.name === "q" && document.activeElement.value === ""`},
		{"queue:email\r", "a search is found", `location.pathname === "/calls" && location.search === "?q=queue%3Aemail"`},
	} {
		if err := s.browser.press(press.key); err != nil {
			return err
		}
		s.comes(press.what, press.script)
	}
	return nil
}

// hide has the page believe that it is hidden, and seen again. Chromium hides no tab without a window.
func (s *suite) hide() error {
	for _, step := range []struct{ hidden, what, script string }{
		{"true", "a hidden page is watched no longer", `events === null`},
		{"false", "a page that is seen again is live", `events !== null && events.readyState === EventSource.OPEN`},
	} {
		script := `Object.defineProperty(document, "hidden", {configurable: true, get: () => HIDDEN}); document.dispatchEvent(new Event("visibilitychange"))`
		if _, err := eval[bool](s.browser, strings.Replace(script, "HIDDEN", step.hidden, 1)); err != nil {
			return err
		}
		s.comes(step.what, step.script)
	}
	return nil
}
