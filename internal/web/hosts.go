package web

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// KnownHosts says which Host headers to answer. A server on loopback relies on nobody else reaching it. But a browser
// on that machine runs others' pages, and DNS rebinding lets such a page read from 127.0.0.1 under its own name. It
// still sends that name as the Host.
func KnownHosts(address net.Addr, listen string) func(host string) bool {
	tcp, ok := address.(*net.TCPAddr)
	if !ok || !tcp.IP.IsLoopback() {
		return func(string) bool { return true }
	}
	configured := hostName(listen)
	return func(host string) bool {
		name := hostName(host)
		if ip, err := netip.ParseAddr(name); err == nil {
			return ip.Unmap().IsLoopback()
		}
		return name == "localhost" || strings.HasSuffix(name, ".localhost") || name != "" && name == configured
	}
}

// Unknown says why callq does not answer a Host.
func Unknown(host string) string {
	return fmt.Sprintf("This callq listens on loopback, and is not known as %q there: ask for localhost or 127.0.0.1. "+
		"A proxy before it should send that as the Host.", host)
}

// hostName is the name or address in a host, without its port: through a tunnel the port differs.
func hostName(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	} else {
		host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}
