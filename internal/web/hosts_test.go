package web_test

import (
	"net"
	"net/http"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/callq/callq/internal/web"
)

// Who listens on loopback answers to its own names alone.
func TestHosts(t *testing.T) {
	t.Parallel()
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
		cfg := web.Config{
			Metrics: prometheus.NewRegistry(), Pages: http.RedirectHandler("/there", http.StatusFound),
			Known: web.KnownHosts(&net.TCPAddr{IP: net.ParseIP(c.ip), Port: 7460}, c.listen),
		}
		for host, known := range c.hosts {
			want, page := http.StatusMisdirectedRequest, http.StatusMisdirectedRequest
			if known {
				want, page = http.StatusOK, http.StatusFound
			}
			for path, want := range map[string]int{"/readyz": want, "/metrics": want, "/calls": page, "/livez": http.StatusOK} {
				if status, text := ask(t, cfg, http.MethodGet, path, func(r *http.Request) { r.Host = host }); status != want {
					t.Errorf("on %s, asked for %s of %q: %d, want %d\n%s", c.ip, path, host, status, want, text)
				}
			}
		}
	}
}
