package httptask

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/callq/callq/internal/outcome"
)

// A connection is made before the start is asked for, so that it occupies no unit however long it takes. Dialing promises:
//
//   - each address is checked as it is dialled, and one that is refused is not connected to;
//   - an address that is silent costs nextAddress before the next is tried beside it (RFC 8305), one that fails nothing;
//   - the first connection that is made is the one that is used, and the others are closed.

// nextAddress is how long an address has before the next is tried: RFC 8305's 250 ms are for two families that work alike.
const nextAddress = 300 * time.Millisecond

var errHTTP2Only = outcome.Permanent(errors.New("the server speaks only HTTP/2, and callq HTTP/1.1"))

// newTransport speaks HTTP/1.1, without a proxy, over gated connections: one per request, at most
// so many to a host, kept as long as they can be.
func (t *Task) newTransport(connections int) *http.Transport {
	protocols := &http.Protocols{}
	protocols.SetHTTP1(true)
	return &http.Transport{
		Protocols:              protocols,
		DialContext:            t.dial,
		DialTLSContext:         t.dialTLS,
		DisableCompression:     true,
		MaxIdleConnsPerHost:    connections,
		MaxConnsPerHost:        connections, // as many as there are attempts: it delays none
		IdleConnTimeout:        maxIdle,     // of those that had no request; for others see idleTimes
		MaxResponseHeaderBytes: maxAnswerHeader,
		WriteBufferSize:        writeBuffer,
	}
}

// dialled is a connection, and how long the other side took to answer.
type dialled struct {
	net.Conn
	rtt time.Duration
}

// dial resolves and connects, to allowed addresses only. From then on a close, by the kernel of
// a killed worker too, is a reset that drops what has not left.
func (t *Task) dial(ctx context.Context, _, addr string) (net.Conn, error) {
	begun := time.Now()
	ctx, cancel := context.WithTimeout(ctx, t.cfg.ConnectTimeout)
	defer cancel()
	addrs, err := t.resolve(ctx, addr)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	dialer := net.Dialer{ControlContext: t.addresses.control(addr)}
	conn, err := race(ctx, addrs, func(ctx context.Context, to string) (dialled, error) {
		begun := time.Now()
		conn, err := dialer.DialContext(ctx, "tcp", to)
		return dialled{conn, time.Since(begun)}, err
	})
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	raw := conn.Conn.(*net.TCPConn)
	if err := errors.Join(raw.SetLinger(0), limitResends(raw)); err != nil {
		_ = raw.Close()
		return nil, fmt.Errorf("set SO_LINGER and TCP_USER_TIMEOUT: %w", err)
	}
	now := time.Now()
	return &gatedConn{Conn: raw, raw: raw, dialed: begun, rtt: conn.rtt, last: now, host: t.idle.of(addr, now)}, nil
}

// dialTLS makes the handshake itself, so that the gate is above TLS and what passes it is the request.
func (t *Task) dialTLS(ctx context.Context, network, addr string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, t.cfg.ConnectTimeout)
	defer cancel()
	conn, err := t.dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	gate, config := conn.(*gatedConn), t.cfg.TLS.Clone()
	if config.ServerName == "" {
		config.ServerName, _, _ = net.SplitHostPort(addr)
	}
	secure := tls.Client(gate.raw, config)
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = gate.raw.Close()
		// crypto/tls has no name for the alert no_application_protocol.
		if alert, ok := errors.AsType[*net.OpError](err); ok && alert.Op == "remote error" && alert.Err.Error() == "tls: no application protocol" {
			err = errHTTP2Only
		}
		return nil, fmt.Errorf("TLS handshake: %w", err)
	}
	gate.Conn, gate.last = secure, time.Now()
	return gate, nil
}

// resolve returns the addresses of host:port in the order in which they are tried: the resolver's, the families in turns.
func (t *Task) resolve(ctx context.Context, addr string) ([]string, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return []string{addr}, nil
	}
	resolver := t.cfg.Resolver
	if resolver == nil {
		resolver = net.DefaultResolver
	}
	ips, err := resolver.LookupIPAddr(ctx, host)
	if err != nil {
		return nil, err
	}
	list := make([]string, len(ips))
	var families [2][]string
	for i, ip := range ips {
		list[i] = net.JoinHostPort(ip.String(), port)
		family := 0
		if (ip.IP.To4() == nil) != (ips[0].IP.To4() == nil) {
			family = 1
		}
		families[family] = append(families[family], list[i])
	}
	list = list[:0]
	for i := range max(len(families[0]), len(families[1])) {
		for _, family := range families {
			if i < len(family) {
				list = append(list, family[i])
			}
		}
	}
	return list, nil
}

// race dials the addresses one after the other, each once the one before it has failed or was silent for nextAddress, and
// returns the first connection. Else the error is that of the first address which has one.
func race(ctx context.Context, addrs []string, dial func(context.Context, string) (dialled, error)) (dialled, error) {
	if len(addrs) == 1 {
		return dial(ctx, addrs[0])
	}
	type result struct {
		i    int
		conn dialled
		err  error
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make(chan result, len(addrs)) // with room for all: no sender waits
	timer := time.NewTimer(nextAddress)
	defer timer.Stop()
	begun := 0
	next := func() {
		if begun == len(addrs) {
			return
		}
		i := begun
		begun++
		timer.Reset(nextAddress)
		go func() {
			conn, err := dial(ctx, addrs[i])
			results <- result{i, conn, err}
		}()
	}
	errs := make([]error, len(addrs))
	next()
	for ended := 0; ended < len(addrs); {
		select {
		case <-timer.C:
			next()
		case r := <-results:
			ended++
			if r.err == nil {
				go func() { // the others end soon, for their context does
					for range begun - ended {
						if late := <-results; late.err == nil {
							_ = late.conn.Close()
						}
					}
				}()
				return r.conn, nil
			}
			errs[r.i] = r.err
			next()
		}
	}
	return dialled{}, cmp.Or(errs...)
}
