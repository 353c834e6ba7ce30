package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"github.com/chromedp/cdproto/audits"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/callq/callq/verification/packages"
)

// browser is a tab of a real Chromium, and axe-core.
type browser struct {
	ctx    context.Context // the tab's, of chromedp
	cancel []context.CancelFunc
	axe    string

	mu         sync.Mutex
	complaints []string // of the browser, since they were taken last
}

// startBrowser installs what is missing, and opens a tab.
func startBrowser(ctx context.Context, temp string) (_ *browser, err error) {
	path, err := findChromium(ctx)
	if err != nil {
		return nil, err
	}
	dir, err := packages.NPM(ctx, filepath.Join("pages", "axe"))
	if err != nil {
		return nil, err
	}
	axe, err := os.ReadFile(filepath.Join(dir, "node_modules", "axe-core", "axe.min.js"))
	if err != nil {
		return nil, err
	}
	b := &browser{axe: string(axe)}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.UserDataDir(filepath.Join(temp, "browser")))
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox) // it refuses to run as root with one
	}
	allocator, stop := chromedp.NewExecAllocator(ctx, options...)
	tab, end := chromedp.NewContext(allocator)
	b.ctx, b.cancel = tab, []context.CancelFunc{end, stop}
	err = chromedp.Listen(tab, b.hear)
	if err == nil {
		err = b.run(command(audits.Enable, cdp.Empty{}))
	}
	if err != nil {
		b.close()
		return nil, fmt.Errorf("start chromium: %w", err)
	}
	return b, nil
}

func findChromium(ctx context.Context) (string, error) {
	names := []string{"chromium", "chromium-browser", "google-chrome"}
	find := func() string {
		for _, name := range names {
			if path, err := exec.LookPath(name); err == nil {
				return path
			}
		}
		return ""
	}
	if path := find(); path != "" {
		return path, nil
	}
	if err := packages.Debian(ctx, "chromium", "fonts-dejavu-core"); err != nil {
		return "", err
	}
	if path := find(); path != "" {
		return path, nil
	}
	return "", errors.New("chromium is installed, and not on PATH")
}

func (b *browser) close() {
	for _, cancel := range b.cancel {
		cancel()
	}
}

// hear keeps what the browser complains of.
func (b *browser) hear(event any) {
	text := ""
	switch e := event.(type) {
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError || e.Entry.Level == log.EntryLevelWarning {
			text = fmt.Sprintf("%s: %s %s", e.Entry.Source, e.Entry.Text, e.Entry.URL)
		}
	case *runtime.EventExceptionThrown:
		text = "exception: " + e.ExceptionDetails.Text
		if e.ExceptionDetails.Exception != nil {
			text += " " + e.ExceptionDetails.Exception.Description
		}
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError || e.Type == runtime.ConsoleAPICalledTypeWarning {
			text = "console: " + string(e.Type)
			for _, arg := range e.Args {
				text += " " + string(arg.Value) + arg.Description
			}
		}
	case *audits.EventIssueAdded:
		if csp := e.Issue.Details.ContentSecurityPolicyIssueDetails; csp != nil {
			text = fmt.Sprintf("CSP: %s %s", csp.ViolatedDirective, csp.BlockedURL)
		}
	}
	if text != "" {
		b.mu.Lock()
		b.complaints = append(b.complaints, text)
		b.mu.Unlock()
	}
}

// complained takes what the browser complained of.
func (b *browser) complained() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	taken := b.complaints
	b.complaints = nil
	return taken
}

// within is how long anything in the browser may take.
const within = 30 * time.Second

// run has the browser do things, one after the other, within a bound.
func (b *browser) run(actions ...chromedp.Action[chromedp.Void]) error {
	_, err := ask(b, chromedp.Steps(actions...))
	return err
}

// ask has the browser do something, within a bound.
func ask[T any](b *browser, action chromedp.Action[T]) (T, error) {
	ctx, cancel := context.WithTimeout(b.ctx, within)
	defer cancel()
	return chromedp.Run(ctx, action)
}

// command is a command of the browser's protocol, whose result nobody needs.
func command[P, R any](c cdp.Command[P, R], params P) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, c, params)
		return err
	})
}

// eval evaluates an expression, which may be a promise.
func eval[T any](b *browser, script string) (T, error) {
	value, err := ask(b, chromedp.Evaluate[T](script, chromedp.EvalAwaitPromise))
	if err != nil {
		err = fmt.Errorf("%w in %.80s", err, script)
	}
	return value, err
}

// until waits until an expression is true. Its error is errNever if it does not get so. What fails while one page gives way to
// another is tried again.
func (b *browser) until(script string) error {
	var last error
	for end := time.Now().Add(within); time.Now().Before(end) && b.ctx.Err() == nil; time.Sleep(50 * time.Millisecond) {
		is, err := eval[bool](b, script)
		if is {
			return nil
		}
		last = err
	}
	return errors.Join(fmt.Errorf("%w: %s", errNever, script), last, b.ctx.Err())
}

var errNever = errors.New("it never came")

// A look is how somebody looks at a page.
type look struct {
	width, height int64
	scheme        string
}

func (l look) String() string { return fmt.Sprintf("%d px, %s", l.width, l.scheme) }

const phone = 375 // px that a phone is wide

var (
	wide = look{1280, 800, "light"}
	all  = []look{wide, {1280, 800, "dark"}, {phone, 667, "light"}, {phone, 667, "dark"}}
)

func (b *browser) look(l look) error {
	return b.run(
		chromedp.EmulateViewport(l.width, l.height),
		command(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: l.scheme}},
		}),
	)
}

// barrier is what axe-core found.
type barrier struct {
	ID     string `json:"id"`
	Impact string `json:"impact"`
	Help   string `json:"help"`
	Nodes  []struct {
		Target []any `json:"target"`
	} `json:"nodes"`
}

// String leaves out the colors, so that it is the same in light and in dark.
func (v barrier) String() string {
	return fmt.Sprintf("%s (%s): %s: %v, and %d more", v.ID, v.Impact, v.Help, v.Nodes[0].Target, len(v.Nodes)-1)
}

// barriers has axe-core look for what is serious or critical.
func (b *browser) barriers() ([]barrier, error) {
	there, err := eval[bool](b, "typeof axe === 'object'")
	if err == nil && !there {
		_, err = eval[bool](b, b.axe+"; true")
	}
	if err != nil {
		return nil, err
	}
	return eval[[]barrier](b, `axe.run(document, {resultTypes: ['violations']}).then(r => r.violations.filter(v => /serious|critical/.test(v.impact))
		.map(v => ({id: v.id, impact: v.impact, help: v.help, nodes: v.nodes.map(n => ({target: n.target}))})))`)
}

// press presses keys, as on a keyboard: what a page does not handle is typed.
func (b *browser) press(keys string) error {
	var events []chromedp.Action[chromedp.Void]
	for _, key := range keys {
		encoded := kb.Encode(key)
		down, up := *encoded[0], *encoded[len(encoded)-1]
		if len(encoded) == 3 { // An event of its own would type the key also where the page has handled it.
			down.Text, down.UnmodifiedText = encoded[1].Text, encoded[1].UnmodifiedText
		}
		events = append(events, command(input.DispatchKeyEvent, down), command(input.DispatchKeyEvent, up))
	}
	return b.run(events...)
}

// click clicks on what a selector finds, where it is.
func (b *browser) click(selector string) error {
	at, err := eval[[]float64](b, fmt.Sprintf(`(e => { e.scrollIntoView({block: "center"}); const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; })(document.querySelector(%q))`, selector))
	if err != nil {
		return err
	}
	return b.run(chromedp.MouseClickXY(at[0], at[1]))
}

// write writes into a field.
func (b *browser) write(selector, text string) error {
	if _, err := eval[chromedp.Void](b, fmt.Sprintf(`(e => e.select ? e.select() : e.focus())(document.querySelector(%q))`, selector)); err != nil {
		return err
	}
	return b.press(text)
}

// open opens a page, and returns when it could be used: its script has run.
func (b *browser) open(address string) (time.Duration, error) {
	err := b.run(chromedp.Navigate(address))
	if err != nil {
		return 0, fmt.Errorf("open %s: %w", address, err)
	}
	ms, err := eval[float64](b, "performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd")
	return time.Duration(ms * float64(time.Millisecond)), err
}
