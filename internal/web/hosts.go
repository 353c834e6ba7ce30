package web

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// KnownHosts says which Host headers are answered. Who listens on loopback relies on nobody else reaching it; but
// a browser there runs others' pages, and one whose name leads to 127.0.0.1 at its second look-up (DNS
// rebinding) may read what it gets. It still has to send its own name as the Host.
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

// Unknown says why a Host is not answered.
func Unknown(host string) string {
	return fmt.Sprintf("This callq listens on loopback, and is not known as %q there: ask for localhost or 127.0.0.1. "+
		"A proxy before it should send that as the Host.", host)
}

// hostName is the name or address in a host with or without a port: through a tunnel the port is another.
func hostName(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	} else {
		host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}
