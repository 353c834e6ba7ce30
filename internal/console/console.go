// Package console shows in a browser what `callq status`, `calls list|get|why` and `limits get` print.
//
// It only reads. A page is rendered whole, within a timeout, or says what is wrong. It shows what producers, APIs and
// operators wrote as text, whatever it holds. The console does not authenticate: anybody who reaches it may read. On
// loopback, the request's host must be one that it is known by.
package console

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"net/http"
	"strconv"
	"time"
	"unicode"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/callq/callq/callqueue"
	"github.com/callq/callq/internal/web"
)

// Config says what is shown, and to whom.
type Config struct {
	// Pool should be of few connections and the pages' own: what they read takes none from claims and calls.
	Pool *pgxpool.Pool
	// Timeout is of one page; default 5 s.
	Timeout time.Duration
	// Known says which Host headers are answered: web.KnownHosts.
	Known func(host string) bool
	// Explain says whether an error is that Postgres cannot be reached, and what it says in one line.
	Explain func(error) (away bool, text string)
	Logger  *slog.Logger
}

//go:embed *.html style.css
var files embed.FS

type pages struct {
	Config
	client    *callqueue.Client
	templates *template.Template
	style     template.CSS
	policy    string // Content-Security-Policy
}

// New returns the handler of everything but what others have a path for.
func New(cfg Config) (http.Handler, error) {
	if cfg.Timeout == 0 {
		cfg.Timeout = 5 * time.Second
	}
	client, err := callqueue.New(cfg.Pool)
	if err != nil {
		return nil, err
	}
	style, err := files.ReadFile("style.css")
	if err != nil {
		return nil, err
	}
	templates, err := template.New("").Funcs(words()).ParseFS(files, "*.html")
	if err != nil {
		return nil, err
	}
	hash := sha256.Sum256(style)
	p := &pages{
		Config: cfg, client: client, templates: templates, style: template.CSS(style), //nolint:gosec // style.css, which is built in
		policy: "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(hash[:]) + "'; img-src data:; " +
			"form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/{$}", p.show(p.status))
	mux.HandleFunc("/calls", p.show(p.calls))
	mux.HandleFunc("/calls/{id}", p.show(p.call))
	mux.HandleFunc("/limits/{name}", p.show(p.limit))
	mux.HandleFunc("/queues/{name}", p.show(p.queue))
	mux.HandleFunc("/", p.show(func(context.Context, *http.Request) (*page, error) {
		return nil, &refusal{status: http.StatusNotFound, text: "There is no such page."}
	}))
	return p.guard(mux), nil
}

// guard lets through what only reads, and asks for us.
func (p *pages) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, value := range map[string]string{
			"Content-Security-Policy":      p.policy,
			"Content-Type":                 "text/html; charset=utf-8",
			"Cache-Control":                "no-store",
			"Cross-Origin-Resource-Policy": "same-origin",
			"Referrer-Policy":              "no-referrer",
			"X-Content-Type-Options":       "nosniff",
			"X-Frame-Options":              "DENY",
		} {
			w.Header().Set(name, value)
		}
		switch {
		case !p.Known(r.Host):
			p.refuse(w, &refusal{status: http.StatusMisdirectedRequest, text: web.Unknown(r.Host)})
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			w.Header().Set("Allow", "GET, HEAD")
			p.refuse(w, &refusal{status: http.StatusMethodNotAllowed, text: "The pages only show. What changes something is the command line's."})
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// page is what a template shows.
type page struct {
	Template string
	Title    string
	Here     string // where in the navigation
	Every    int    // seconds after which it is loaded again; 0: never
	Body     any

	Style template.CSS
}

// refusal is why there is no page, for the reader.
type refusal struct {
	status int
	text   string
	every  int // seconds after which it is asked again; 0: never
}

func (r *refusal) Error() string { return r.text }

func (p *pages) show(read func(context.Context, *http.Request) (*page, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), p.Timeout)
		defer cancel()
		shown, err := read(ctx, r)
		switch {
		case r.Context().Err() != nil: // nobody waits for it
		case err != nil:
			why := p.refusalOf(r, err)
			if why.status == http.StatusServiceUnavailable { // who watches sees when it is over
				why.every, _ = everyOf(r.URL.Query())
			}
			p.refuse(w, why)
		default:
			p.write(w, http.StatusOK, shown)
		}
	}
}

// refusalOf says what is wrong, with what to do. What only a fault of callq or of its set-up explains is logged.
func (p *pages) refusalOf(r *http.Request, err error) *refusal {
	if known, ok := errors.AsType[*refusal](err); ok {
		return known
	}
	away, text := p.Explain(err)
	pg, _ := errors.AsType[*pgconn.PgError](err)
	switch {
	case errors.Is(err, context.DeadlineExceeded), pg != nil && pg.Code == "57014": // cancelled, as statement_timeout does
		return &refusal{status: http.StatusServiceUnavailable, text: fmt.Sprintf("Postgres did not answer within %s.", p.Timeout)}
	case away:
		return &refusal{status: http.StatusServiceUnavailable, text: "Postgres cannot be reached: " + text}
	case pg != nil && (pg.Code == "42P01" || pg.Code == "42703" || pg.Code == "42883"): // no such table, column, function
		return &refusal{status: http.StatusServiceUnavailable, text: "The database has not the schema of this callq: `callq doctor` says more. " + text}
	}
	p.Logger.ErrorContext(r.Context(), "page not shown", "path", r.URL.Path, "err", err)
	if pg != nil && pg.Code == "42501" {
		text += "; `callq migrate roles` grants what callq's roles need"
	}
	return &refusal{status: http.StatusInternalServerError, text: "This page cannot be shown: " + text}
}

func (p *pages) refuse(w http.ResponseWriter, r *refusal) {
	p.write(w, r.status, &page{Template: "refusal", Title: http.StatusText(r.status), Every: r.every, Body: r.text})
}

// write writes a page that is whole.
func (p *pages) write(w http.ResponseWriter, status int, shown *page) {
	shown.Style = p.style
	var text bytes.Buffer
	if err := p.templates.ExecuteTemplate(&text, shown.Template, shown); err != nil {
		p.Logger.Error("page not written", "template", shown.Template, "err", err)
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		http.Error(w, "this page cannot be written: see callq's log", http.StatusInternalServerError)
		return
	}
	clean := bytes.Map(visible, text.Bytes())
	w.Header().Set("Content-Length", strconv.Itoa(len(clean)))
	w.WriteHeader(status)
	_, _ = w.Write(clean) // fails only if the client has gone
}

// visible puts a sign where a text holds what is not UTF-8, controls something or turns the line round.
func visible(r rune) rune {
	if unicode.IsPrint(r) || r == '\n' || r == '\t' || r == '\r' {
		return r
	}
	return unicode.ReplacementChar
}
