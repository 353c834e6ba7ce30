package httptask

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"
)

const (
	// maxHeader bounds a request's header. The transport's write buffer takes it whole with room to
	// spare, so that it leaves with the first Write.
	maxHeader       = 15 << 10
	writeBuffer     = 16 << 10
	maxAnswerHeader = 64 << 10
	idleTimeout     = 30 * time.Second // shorter than most servers': what they close may be in use again
)

// dialer makes gated connections. It is safe for concurrent use.
type dialer struct {
	timeout   time.Duration
	tls       *tls.Config
	addresses *addresses
	resolver  *net.Resolver // nil: the system's
}

// newTransport speaks HTTP/1.1, without a proxy, over gated connections: one per request, at most
// MaxIdlePerHost to a host, kept as long as they can be.
func newTransport(cfg Config, a *addresses) *http.Transport {
	d := &dialer{timeout: cfg.ConnectTimeout, tls: &tls.Config{}, addresses: a, resolver: cfg.Resolver}
	if cfg.TLS != nil {
		d.tls = cfg.TLS.Clone()
	}
	d.tls.NextProtos = []string{"http/1.1"}
	if d.tls.ClientSessionCache == nil {
		d.tls.ClientSessionCache = tls.NewLRUClientSessionCache(0)
	}
	protocols := &http.Protocols{}
	protocols.SetHTTP1(true)
	return &http.Transport{
		Protocols:              protocols,
		DialContext:            d.dial,
		DialTLSContext:         d.dialTLS,
		DisableCompression:     true,
		MaxIdleConnsPerHost:    cfg.MaxIdlePerHost,
		MaxConnsPerHost:        cfg.MaxIdlePerHost, // as many as there are attempts: it delays none
		IdleConnTimeout:        idleTimeout,
		MaxResponseHeaderBytes: maxAnswerHeader,
		WriteBufferSize:        writeBuffer,
	}
}

// dial resolves and connects, to allowed addresses only. From then on a close, by the kernel of
// a killed worker too, is a reset that drops what has not left.
func (d *dialer) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	nd := net.Dialer{Timeout: d.timeout, ControlContext: d.addresses.control(addr), Resolver: d.resolver}
	conn, err := nd.DialContext(ctx, network, addr)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	raw := conn.(*net.TCPConn) // network is always tcp
	if err := errors.Join(raw.SetLinger(0), limitResends(raw)); err != nil {
		_ = raw.Close()
		return nil, fmt.Errorf("set SO_LINGER and TCP_USER_TIMEOUT: %w", err)
	}
	return &gatedConn{Conn: raw, raw: raw}, nil
}

// dialTLS makes the handshake itself, so that the gate is above TLS and what passes it is the request.
func (d *dialer) dialTLS(ctx context.Context, network, addr string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	conn, err := d.dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	gate, config := conn.(*gatedConn), d.tls.Clone()
	if config.ServerName == "" {
		config.ServerName, _, _ = net.SplitHostPort(addr)
	}
	secure := tls.Client(gate.raw, config)
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = gate.raw.Close()
		return nil, fmt.Errorf("TLS handshake: %w", err)
	}
	gate.Conn = secure
	return gate, nil
}
