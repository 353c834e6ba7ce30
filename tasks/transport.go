package tasks

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"syscall"
	"time"
)

// newTransport makes the http task's transport: HTTP/1.1 on gated connections. Redirects, proxies
// and HTTP/2 are off, for each would send what the gate does not see as one request.
func newTransport(cfg HTTPConfig, allowed hosts) *http.Transport {
	d := dialer{cfg: cfg, hosts: allowed}
	return &http.Transport{
		DialContext:            d.plain,
		DialTLSContext:         d.tls,
		TLSNextProto:           map[string]func(string, *tls.Conn) http.RoundTripper{},
		MaxIdleConnsPerHost:    max(cfg.MaxIdlePerHost, 1),
		IdleConnTimeout:        90 * time.Second,
		MaxResponseHeaderBytes: 256 << 10,
	}
}

type dialer struct {
	cfg   HTTPConfig
	hosts hosts
}

func (d dialer) plain(ctx context.Context, network, address string) (net.Conn, error) {
	raw, err := d.tcp(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &gatedConn{Conn: raw, raw: raw}, nil
}

// tls shakes hands here and not in the transport, so that the gate sees the request and not the
// handshake.
func (d dialer) tls(ctx context.Context, network, address string) (net.Conn, error) {
	raw, err := d.tcp(ctx, network, address)
	if err != nil {
		return nil, err
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, errors.Join(err, raw.Close())
	}
	cfg := d.cfg.TLS.Clone()
	if cfg == nil {
		cfg = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	if cfg.ServerName == "" {
		cfg.ServerName = host
	}
	conn := tls.Client(raw, cfg)
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("TLS handshake with %s: %w", address, err), raw.Close())
	}
	return &gatedConn{Conn: conn, raw: raw}, nil
}

// tcp connects, with a linger time of 0: when the connection or this process ends, the kernel
// sends nothing more of it.
func (d dialer) tcp(ctx context.Context, network, address string) (*net.TCPConn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	dial := net.Dialer{
		Timeout: d.cfg.ConnectTimeout,
		Control: func(_, resolved string, _ syscall.RawConn) error { return d.hosts.dial(host, port, resolved) },
	}
	conn, err := dial.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	raw, ok := conn.(*net.TCPConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("%s is not a TCP network", network), conn.Close())
	}
	if err := raw.SetLinger(0); err != nil {
		return nil, errors.Join(fmt.Errorf("set linger of %s: %w", address, err), raw.Close())
	}
	return raw, nil
}
