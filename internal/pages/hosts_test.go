package pages_test

import (
	"log/slog"
	"net"
	"net/http"
	"testing"

	"github.com/callq/callq/internal/pages"
	"github.com/callq/callq/internal/pgtest"
)

// Who listens on loopback answers to its own names alone.
func TestHosts(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	for _, c := range []struct {
		ip, listen string
		hosts      map[string]bool
	}{
		{"127.0.0.1", "127.0.0.1:7460", map[string]bool{
			"127.0.0.1:7460": true, "127.0.0.1": true, "localhost:7460": true, "LOCALHOST": true, "localhost.": true, "localhost:8080": true, "[::1]:7460": true,
			"[::1]": true, "127.9.9.9": true, "[::ffff:127.0.0.1]:1": true, "callq.localhost": true,
			"evil.example:7460": false, "evil.example": false, "127.0.0.1.evil.example": false, "localhost.evil.example": false, "evillocalhost": false,
			"0.0.0.0:7460": false, "10.0.0.1:7460": false, "": false, ":7460": false, "[::]": false, "localhost@evil.example": false, "a:b:c": false,
		}},
		{"127.0.1.1", "myhost:7460", map[string]bool{"myhost:7460": true, "MyHost": true, "localhost": true, "otherhost": false}},
		{"::1", "[::1]:7460", map[string]bool{"[::1]:7460": true, "localhost": true, "evil.example": false}},
		{"0.0.0.0", ":7460", map[string]bool{"callq.internal": true, "10.0.0.1:7460": true}},
		{"10.0.0.1", "10.0.0.1:7460", map[string]bool{"callq.internal": true}},
	} {
		handler, err := pages.New(pages.Config{
			Pool: pool, Timeout: plentiful, Address: &net.TCPAddr{IP: net.ParseIP(c.ip), Port: 7460}, Listen: c.listen,
			Explain: func(error) (bool, string) { return false, "" }, Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		site := &site{t: t, handler: handler}
		for host, known := range c.hosts {
			want := http.StatusMisdirectedRequest
			if known {
				want = http.StatusOK
			}
			if status, text := site.ask(http.MethodGet, "/calls", func(r *http.Request) { r.Host = host }); status != want {
				t.Errorf("on %s, asked for %q: %d, want %d\n%s", c.ip, host, status, want, text)
			}
		}
	}
}
