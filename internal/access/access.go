// Package access tells who sends a request over HTTP, and what they may do.
//
// A user has a name and a password (Basic), a script a token (Bearer), and a proxy that has authenticated somebody says whom in a
// header. Where none of these is set up, nobody has to log in, and everybody has the same role. A page of another site can
// change nothing: its requests are refused whoever sends them. Each refusal is logged.
package access

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"unicode"
)

// Role is what somebody may do. Each may do what those before it may.
type Role int

// The roles.
const (
	Nobody   Role = iota
	Viewer        // reads
	Operator      // pauses and resumes, and changes calls
	Admin         // changes limits
)

var roleNames = []string{"nobody", "viewer", "operator", "admin"}

func (r Role) String() string { return roleNames[r] }

// ParseRole reads viewer, operator or admin.
func ParseRole(text string) (Role, error) {
	for r := Viewer; r <= Admin; r++ {
		if text == r.String() {
			return r, nil
		}
	}
	return Nobody, fmt.Errorf("%q is no role: viewer, operator or admin", text)
}

// Who sends a request.
type Who struct {
	Name string // for the audit
	Role Role
}

// Config is who may come in. With no users, tokens or proxy, everybody is Open.
type Config struct {
	Users  string // a file, as ReadUsers reads it; empty: there are none
	Tokens []Token
	Proxy  Proxy
	Open   Who
	// Application has let people in, where these pages are mounted in one; nobody's requests are refused. Then the rest does not count.
	Application func(*http.Request) Who
	Hosts       []string // names that this server has beside the Host of a request, for what browsers call its origin
	Logger      *slog.Logger
}

// Token lets a script in.
type Token struct {
	Name  string // of the script, for the audit
	Value string
	Role  Role
}

// Proxy is one that has authenticated whom its header names. Users without a role of their own are viewers.
type Proxy struct {
	From   []netip.Prefix // addresses that it sends from; none: there is no proxy
	Header string
	Roles  map[string]Role
}

// Guard lets requests in.
type Guard struct {
	cfg    Config
	users  *users // nil: there are none
	origin *http.CrossOriginProtection
}

// New reads the users. An error names what is wrong with them.
func New(cfg Config) (*Guard, error) {
	g := &Guard{cfg: cfg, origin: http.NewCrossOriginProtection()}
	for _, host := range cfg.Hosts {
		for _, scheme := range []string{"http://", "https://"} {
			if err := g.origin.AddTrustedOrigin(scheme + host); err != nil {
				return nil, fmt.Errorf("host %q: %w", host, err)
			}
		}
	}
	if cfg.Users != "" {
		var err error
		if g.users, err = newUsers(cfg.Users); err != nil {
			return nil, err
		}
	}
	for _, t := range cfg.Tokens {
		if t.Value == "" {
			return nil, fmt.Errorf("token %s is empty", t.Name)
		}
	}
	return g, nil
}

// Closed reports whether people have to log in.
func (g *Guard) Closed() bool {
	return g.cfg.Application != nil || g.users != nil || len(g.cfg.Tokens) > 0 || len(g.cfg.Proxy.From) > 0
}

type whoKey struct{}

// Of is who sends the request of this context. It is nobody outside a Guard's Handler.
func Of(ctx context.Context) Who {
	who, _ := ctx.Value(whoKey{}).(Who)
	return who
}

// As is a context whose request somebody sends, for an application that has let them in itself.
func As(ctx context.Context, who Who) context.Context { return context.WithValue(ctx, whoKey{}, who) }

// Handler answers those who may come in, and refuses others: 401, or 403 where another site's page sent a request that changes
// something. refuse writes the answer.
func (g *Guard) Handler(next http.Handler, refuse func(w http.ResponseWriter, r *http.Request, status int, why string)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := g.origin.Check(r); err != nil {
			g.Refused(r, http.StatusForbidden, "it comes from a page of another site")
			refuse(w, r, http.StatusForbidden, "A page of another site sent this request. Nothing was done.")
			return
		}
		who, err := g.who(r)
		if err != nil {
			g.Refused(r, http.StatusUnauthorized, err.Error())
			switch {
			case g.users != nil:
				w.Header().Set("WWW-Authenticate", `Basic realm="callq", charset="UTF-8"`)
			case g.cfg.Application == nil:
				w.Header().Set("WWW-Authenticate", "Bearer")
			}
			refuse(w, r, http.StatusUnauthorized, "Log in first: "+err.Error()+".")
			return
		}
		next.ServeHTTP(w, r.WithContext(As(r.Context(), who)))
	})
}

// Refused logs that a request was refused.
func (g *Guard) Refused(r *http.Request, status int, why string) {
	g.cfg.Logger.WarnContext(r.Context(), "request refused", "status", status, "why", why, "method", r.Method, "path", r.URL.Path,
		"from", r.RemoteAddr, "user", Of(r.Context()).Name)
}

var errNobody = errors.New("there is no login")

// who tells who sends a request. A login that is wrong is refused, even where another way in is open.
func (g *Guard) who(r *http.Request) (Who, error) {
	if g.cfg.Application != nil {
		if who := g.cfg.Application(r); who.Role > Nobody {
			return who, nil
		}
		return Who{}, errNobody
	}
	if !g.Closed() {
		return g.cfg.Open, nil
	}
	if secret, ok := bearer(r); ok {
		return g.byToken(secret)
	}
	if name, password, ok := r.BasicAuth(); ok {
		if g.users == nil {
			return Who{}, errors.New("no users are set up")
		}
		return g.users.check(r.Context(), name, password)
	}
	return g.byProxy(r)
}

func bearer(r *http.Request) (secret string, ok bool) {
	scheme, secret, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	return strings.TrimSpace(secret), strings.EqualFold(scheme, "Bearer")
}

// byToken compares all tokens in constant time.
func (g *Guard) byToken(secret string) (who Who, err error) {
	err = errors.New("there is no such token")
	given := sha256.Sum256([]byte(secret))
	for _, t := range g.cfg.Tokens {
		if known := sha256.Sum256([]byte(t.Value)); subtle.ConstantTimeCompare(given[:], known[:]) == 1 {
			who, err = Who{t.Name, t.Role}, nil
		}
	}
	return who, err
}

// byProxy believes the header only from the proxy's own addresses.
func (g *Guard) byProxy(r *http.Request) (Who, error) {
	names := r.Header.Values(g.cfg.Proxy.Header)
	switch {
	case len(g.cfg.Proxy.From) == 0 || len(names) == 0:
		return Who{}, errNobody
	case !g.fromProxy(r.RemoteAddr):
		return Who{}, fmt.Errorf("the header %s counts only from the proxy's addresses", g.cfg.Proxy.Header)
	case len(names) > 1 || names[0] == "" || strings.ContainsFunc(names[0], func(r rune) bool { return !unicode.IsPrint(r) }):
		return Who{}, fmt.Errorf("the header %s does not name one user", g.cfg.Proxy.Header)
	}
	role, ok := g.cfg.Proxy.Roles[names[0]]
	if !ok {
		role = Viewer
	}
	return Who{names[0], role}, nil
}

func (g *Guard) fromProxy(remote string) bool {
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		return false
	}
	address, err := netip.ParseAddr(host)
	if err != nil {
		return false
	}
	for _, prefix := range g.cfg.Proxy.From {
		if prefix.Contains(address.Unmap().WithZone("")) {
			return true
		}
	}
	return false
}
