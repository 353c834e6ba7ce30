// Package console shows in a browser what `callq status`, `calls list|get|why` and `limits get` print.
//
// It only reads. A page is rendered whole, within a timeout, or is the error. Whatever producers, APIs and
// operators wrote appears as text. The console does not authenticate: anybody who reaches it may read.
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
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/schema"
)

// Config is what the console shows, and to whom.
type Config struct {
	// Pool should be small and the console's own, so that its reads take no connections from claims and calls.
	Pool    schema.DB
	Client  *callqueue.Client
	Timeout time.Duration // of each page
	// Explain is whether an error means that Postgres cannot be reached, and puts the error into one line.
	Explain func(error) (away bool, text string)
	Logger  *slog.Logger
}

//go:embed *.html style.css
var files embed.FS

type pages struct {
	Config
	templates *template.Template
}

// New returns the handler of all paths that no other handler has.
func New(cfg Config) (http.Handler, error) {
	templates, err := template.New("").Funcs(functions()).ParseFS(files, "*.html")
	if err != nil {
		return nil, err
	}
	p := &pages{cfg, templates}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", p.show(p.status))
	mux.HandleFunc("GET /limits", p.show(p.limits))
	mux.HandleFunc("GET /queues", p.show(p.queues))
	mux.HandleFunc("GET /calls", p.show(p.calls))
	mux.HandleFunc("GET /calls/{id}", p.show(p.call))
	mux.HandleFunc("GET /limits/{name}", p.show(p.limit))
	mux.HandleFunc("GET /queues/{name}", p.show(p.queue))
	mux.Handle("GET /style.css", http.FileServerFS(files))
	return guarded(mux), nil
}

// guarded has browsers show the pages, and do nothing else with them.
func guarded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, value := range map[string]string{
			"Content-Security-Policy": "default-src 'none'; style-src 'self'; img-src data:; form-action 'self'; " +
				"base-uri 'none'; frame-ancestors 'none'",
			"Cache-Control":                "no-store",
			"Cross-Origin-Resource-Policy": "same-origin",
			"Referrer-Policy":              "no-referrer",
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
	Every    int // seconds after which the browser loads it again; 0: never
	Body     any
}

// refused is a page that tells the reader why there is no other.
func refused(status int, format string, args ...any) *page {
	return &page{Status: status, Template: "refusal", Title: http.StatusText(status), Body: fmt.Sprintf(format, args...)}
}

// show is the handler of a page.
func (p *pages) show(read func(context.Context, *http.Request) (*page, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), p.Timeout)
		defer cancel()
		shown, err := read(ctx, r)
		if err != nil {
			shown = p.refusal(ctx, err)
		}
		every, _ := strconv.Atoi(r.URL.Query().Get("every"))
		shown.Every = max(0, every) // of a refusal too: a page that reloads itself goes on
		p.write(w, shown)
	}
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
