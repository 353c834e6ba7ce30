// Package console shows in a browser what `callq status`, `calls list|get|why` and `limits get` print.
//
// It only reads. A page is rendered whole, within a timeout, or says what is wrong. Whatever producers, APIs and
// operators wrote appears as text. The console does not authenticate: anybody who reaches it may read.
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
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/callq/callq/callqueue"
)

// Config says what the console shows, and to whom.
type Config struct {
	// Pool should be small and the console's own, so that its reads take no connections from claims and calls.
	Pool    *pgxpool.Pool
	Timeout time.Duration // of each page
	// Explain says whether an error means that Postgres cannot be reached, and puts the error into one line.
	Explain func(error) (away bool, text string)
	Logger  *slog.Logger
}

//go:embed *.html
var files embed.FS

//go:embed style.css
var style string

type pages struct {
	Config
	client    *callqueue.Client
	templates *template.Template
	policy    string // Content-Security-Policy
}

// New returns the handler of all paths that no other handler has.
func New(cfg Config) (http.Handler, error) {
	client, err := callqueue.New(cfg.Pool)
	if err != nil {
		return nil, err
	}
	templates, err := template.New("").Funcs(words()).Parse(`{{define "style"}}<style>` + style + `</style>{{end}}`)
	if err != nil {
		return nil, err
	}
	if templates, err = templates.ParseFS(files, "*.html"); err != nil {
		return nil, err
	}
	hash := sha256.Sum256([]byte(style))
	p := &pages{
		Config: cfg, client: client, templates: templates,
		policy: "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(hash[:]) + "'; img-src data:; " +
			"form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/{$}", p.show(p.status, "every"))
	mux.HandleFunc("/calls", p.show(p.calls, "status", "queue", "key", "task", "before"))
	mux.HandleFunc("/calls/{id}", p.show(p.call))
	mux.HandleFunc("/limits/{name}", p.show(p.limit))
	mux.HandleFunc("/queues/{name}", p.show(p.queue))
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { p.refuse(w, notFound("There is no such page."), 0) })
	return p.guard(mux), nil
}

// guard refuses requests that would change something.
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
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			p.refuse(w, &refusal{http.StatusMethodNotAllowed, "The pages only show. What changes something is the command line's."}, 0)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// page is what a template shows.
type page struct {
	Template string
	Title    string
	Here     string // where in the navigation
	Every    int    // seconds after which the browser loads it again; 0: never
	Body     any
}

// refusal tells the reader why there is no page.
type refusal struct {
	status int
	text   string
}

func (r *refusal) Error() string { return r.text }

func notFound(format string, args ...any) *refusal {
	return &refusal{http.StatusNotFound, fmt.Sprintf(format, args...)}
}

func badAddress(format string, args ...any) *refusal {
	return &refusal{http.StatusBadRequest, "The address is wrong: " + fmt.Sprintf(format, args...) + "."}
}

// show is the handler of a page, whose address may have these parameters. read finds them in the request's Form.
func (p *pages) show(read func(context.Context, *http.Request) (*page, error), parameters ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		every, err := checkAddress(r, parameters)
		if err != nil {
			p.refuse(w, p.refusalOf(r, err), 0)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), p.Timeout)
		defer cancel()
		shown, err := read(ctx, r)
		switch {
		case r.Context().Err() != nil: // the client has gone
		case err != nil:
			p.refuse(w, p.refusalOf(r, err), every) // a page that reloads itself goes on
		default:
			shown.Every = every
			p.write(w, http.StatusOK, shown)
		}
	}
}

// checkAddress parses the request's Form, and returns the parameter every; 0: it is not given. A text that Postgres would
// not accept names nothing that it has.
func checkAddress(r *http.Request, parameters []string) (every int, err error) {
	isText := func(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }
	if err := r.ParseForm(); err != nil {
		return 0, badAddress("what follows the ? is not a query: %v", err)
	}
	if !isText(r.URL.Path) {
		return 0, notFound("There is nothing of this name: it is not valid UTF-8.")
	}
	for name, values := range r.Form {
		switch {
		case !slices.Contains(parameters, name):
			return 0, badAddress("there is no parameter %q here", name)
		case !isText(values[0]):
			return 0, badAddress("%s is not valid UTF-8, which every call's is", name)
		}
	}
	if text := r.Form.Get("every"); text != "" {
		if every, err = strconv.Atoi(text); err != nil || every < 2 {
			return 0, badAddress("every is %q, and not a number of seconds from 2 on", text)
		}
	}
	return every, nil
}

// refusalOf says what is wrong and what to do. It logs what can only be a fault of callq or of its set-up.
func (p *pages) refusalOf(r *http.Request, err error) *refusal {
	if known, ok := errors.AsType[*refusal](err); ok {
		return known
	}
	away, text := p.Explain(err)
	code := ""
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		code = pg.Code
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded), code == "57014": // cancelled, as statement_timeout does
		return &refusal{http.StatusServiceUnavailable, fmt.Sprintf("Postgres did not answer within %s.", p.Timeout)}
	case away:
		return &refusal{http.StatusServiceUnavailable, "Postgres cannot be reached: " + text}
	case code == "42P01" || code == "42703" || code == "42883": // no such table, column, function
		text = "The database has not the schema of this callq: `callq doctor` says more. " + text
		return &refusal{http.StatusServiceUnavailable, text}
	}
	p.Logger.ErrorContext(r.Context(), "page not shown", "path", r.URL.Path, "err", err)
	if code == "42501" {
		text += "; `callq migrate roles` grants what callq's roles need"
	}
	return &refusal{http.StatusInternalServerError, "This page cannot be shown: " + text}
}

func (p *pages) refuse(w http.ResponseWriter, r *refusal, every int) {
	p.write(w, r.status, &page{Template: "refusal", Title: http.StatusText(r.status), Every: every, Body: r.text})
}

// write renders a page, and then sends it whole.
func (p *pages) write(w http.ResponseWriter, status int, shown *page) {
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

// visible replaces what is not UTF-8, controls something or reverses a line.
func visible(r rune) rune {
	if unicode.IsPrint(r) || r == '\n' || r == '\t' || r == '\r' {
		return r
	}
	return unicode.ReplacementChar
}
