// Package console shows callq in a browser, and lets people act there; scripts do so by its /api.
//
// A page is rendered whole, within a timeout, or is the error. Whatever producers, APIs and operators wrote appears as text. Its
// Guard tells who asks: viewers read, operators and admins act (internal/actions).
package console

import (
	"bytes"
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/access"
	"github.com/callq/callq/internal/actions"
	"github.com/callq/callq/internal/admin"
	"github.com/callq/callq/internal/schema"
)

// Config is what the console shows, and to whom.
type Config struct {
	// Pool should be small and the console's own, so that its reads take no connections from claims and calls.
	Pool    schema.DB
	Client  *callqueue.Client
	Actions *actions.Actions // on connections that may write, and are not bounded by Timeout; nil: nobody acts here
	Guard   *access.Guard
	Prefix  string        // of its paths, such as /callq, where another server's handler mounts it; empty: none
	Timeout time.Duration // of each page
	// AskBudgets asks Redis what budgets have; nil: nobody does.
	AskBudgets func(context.Context, []admin.Budget)
	// Explain is whether an error means that Postgres cannot be reached, and puts the error into one line.
	Explain func(error) (away bool, text string)
	Logger  *slog.Logger
}

//go:embed *.html style.css live.js
var files embed.FS

type pages struct {
	Config
	templates *template.Template
	mux       *http.ServeMux
	live      *live
	recent    recent
}

// New returns the handler of all paths that no other handler has.
func New(cfg Config) (http.Handler, error) {
	p := &pages{Config: cfg}
	p.live = newLive(p)
	var err error
	if p.templates, err = template.New("").Funcs(p.functions()).ParseFS(files, "*.html"); err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	p.mux = mux
	for path, read := range p.reads() {
		mux.HandleFunc("GET "+path, p.show(read))
	}
	mux.HandleFunc("GET /live", p.live.serve)
	mux.HandleFunc("POST /do/{noun}/{verb}", p.act)
	mux.HandleFunc("POST /api/{noun}/{verb}", p.api)
	mux.Handle("GET /style.css", http.FileServerFS(files))
	mux.Handle("GET /live.js", http.FileServerFS(files))
	return headed(http.StripPrefix(cfg.Prefix, cfg.Guard.Handler(mux, p.refuse))), nil
}

// read reads a page.
type read func(context.Context, *http.Request) (*page, error)

// reads are all pages, by path.
func (p *pages) reads() map[string]read {
	return map[string]read{
		"/{$}":              p.status,
		"/limits":           p.limits,
		"/limits/{name}":    p.limit,
		"/queues":           p.queues,
		"/queues/{name}":    p.queue,
		"/calls":            p.calls,
		"/calls/{id}":       p.call,
		"/keys":             p.keys,
		"/keys/{name}":      p.key,
		"/tasks":            p.tasks,
		"/tasks/{name}":     p.task,
		"/workers":          p.workers,
		"/workers/{name}":   p.worker,
		"/budgets/{name}":   p.budget,
		"/budgets":          p.budgets,
		"/audit":            p.audit,
		"/do/{noun}/{verb}": p.ask,
	}
}

// headed has browsers show the pages, and do nothing else with them.
func headed(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, value := range map[string]string{
			"Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; " +
				"form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
			"Cache-Control":                "no-store",
			"Cross-Origin-Resource-Policy": "same-origin",
			"Referrer-Policy":              "same-origin",
			"X-Content-Type-Options":       "nosniff",
			"X-Frame-Options":              "DENY",
		} {
			w.Header().Set(name, value)
		}
		next.ServeHTTP(w, r)
	})
}

// page is what a template shows.
type page struct {
	Status   int // zero: it is there
	Template string
	Title    string
	Search   string // what the search line has
	Live     string // where its changes come from; empty: it has none
	Who      access.Who
	Body     any
}

// Acts reports whether whoever sees the page may act on queues and calls, and Admin on limits too.
func (p *page) Acts() bool  { return p.Who.Role >= access.Operator }
func (p *page) Admin() bool { return p.Who.Role >= access.Admin }

// refused is a page that tells the reader why there is no other.
func refused(status int, format string, args ...any) *page {
	return &page{Status: status, Template: "refusal", Title: http.StatusText(status), Body: fmt.Sprintf(format, args...)}
}

// show is the handler of a page.
func (p *pages) show(read read) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { p.write(w, p.render(r, read)) }
}

// render reads a page, or what is wrong.
func (p *pages) render(r *http.Request, read read) *page {
	ctx, cancel := context.WithTimeout(r.Context(), p.Timeout)
	defer cancel()
	shown, err := read(ctx, r)
	if err != nil {
		shown = p.refusal(ctx, err)
	}
	shown.Who = access.Of(r.Context())
	if p.Actions == nil {
		shown.Who.Role = min(shown.Who.Role, access.Viewer)
	}
	if shown.Live != "" {
		shown.Live = p.Prefix + "/live?" + url.Values{"page": {r.URL.RequestURI()}}.Encode()
	}
	return shown
}

// refuse writes why somebody gets no answer: in JSON to scripts.
func (p *pages) refuse(w http.ResponseWriter, r *http.Request, status int, why string) {
	if strings.HasPrefix(r.URL.Path, "/api/") {
		answer(w, status, map[string]string{"error": why})
		return
	}
	p.write(w, refused(status, "%s", why))
}

// refusal returns what is wrong. It logs what can only be a fault of callq or of its set-up.
func (p *pages) refusal(ctx context.Context, err error) *page {
	away, text := p.Explain(err)
	code := ""
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		code = pg.Code
	}
	switch {
	case ctx.Err() != nil, code == "57014": // cancelled, as statement_timeout does
		return refused(http.StatusServiceUnavailable, "Postgres did not answer within %s.", p.Timeout)
	case away:
		return refused(http.StatusServiceUnavailable, "Postgres cannot be reached: %s", text)
	case strings.HasPrefix(code, "22"): // what is not text for Postgres names nothing that it has
		return refused(http.StatusNotFound, "There is nothing of this name.")
	}
	p.Logger.ErrorContext(ctx, "page not shown", "err", err)
	return refused(http.StatusInternalServerError, "This page cannot be shown; `callq doctor` may say why: %s", text)
}

// write renders a page, and then sends it whole.
func (p *pages) write(w http.ResponseWriter, shown *page) {
	var text bytes.Buffer
	if err := p.templates.ExecuteTemplate(&text, shown.Template, shown); err != nil {
		p.Logger.Error("page not written", "template", shown.Template, "err", err)
		http.Error(w, "this page cannot be written: see callq's log", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(cmp.Or(shown.Status, http.StatusOK))
	_, _ = w.Write(bytes.Map(visible, text.Bytes())) // fails only if the client has gone
}

// visible replaces what is not UTF-8, controls something or reverses a line.
func visible(r rune) rune {
	if unicode.IsPrint(r) || r == '\n' || r == '\t' || r == '\r' {
		return r
	}
	return unicode.ReplacementChar
}
