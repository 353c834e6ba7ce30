package tasks

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// hosts decides which hosts and addresses the http task may call.
type hosts struct {
	only         []string // when set, only these
	private      []string // names, addresses or prefixes that may be private
	allowPrivate bool
}

// allow refuses a URL's host that is not among the hosts that may be called.
func (h hosts) allow(host, port string) error {
	if len(h.only) > 0 && !named(h.only, host, port) {
		return Permanent(fmt.Errorf("host %q may not be called: it is not in http_task.hosts", host))
	}
	return nil
}

// dial refuses a resolved address that is not public, unless the host or the address may be
// private. It is asked for the address that is really dialled, so that no name can rebind.
func (h hosts) dial(host, port, address string) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return Permanent(fmt.Errorf("address %q of host %q cannot be read: %w", address, host, err))
	}
	addr := at.Addr().Unmap().WithZone("")
	if h.allowPrivate || named(h.private, host, port) || public(addr) {
		return nil
	}
	for _, entry := range h.private {
		if prefix, err := netip.ParsePrefix(entry); err == nil && prefix.Contains(addr) {
			return nil
		}
		if one, err := netip.ParseAddr(entry); err == nil && one.Unmap() == addr {
			return nil
		}
	}
	return Permanent(fmt.Errorf("host %q is at the private address %s: allow it in http_task.private_hosts", host, addr))
}

// named says whether a list holds the host, or the host with this port.
func named(list []string, host, port string) bool {
	return slices.ContainsFunc(list, func(entry string) bool {
		return strings.EqualFold(entry, host) || strings.EqualFold(entry, net.JoinHostPort(host, port))
	})
}

// reserved are the prefixes, besides those netip names, whose addresses are not on the public
// internet. Source: IANA's special-purpose address registries.
func reserved() []netip.Prefix {
	var list []netip.Prefix
	for _, p := range []string{
		"0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15",
		"198.51.100.0/24", "203.0.113.0/24", "240.0.0.0/4",
		"64:ff9b:1::/48", "100::/64", "2001::/23", "2001:db8::/32", "3fff::/20", "5f00::/16", "fec0::/10",
	} {
		list = append(list, netip.MustParsePrefix(p))
	}
	return list
}

// public says whether an address is on the public internet. Forms that carry an IPv4 address
// inside (compatible, NAT64, 6to4) are judged by that.
func public(addr netip.Addr) bool {
	if inner, ok := embedded(addr); ok {
		return public(inner)
	}
	if !addr.IsGlobalUnicast() || addr.IsPrivate() {
		return false
	}
	return !slices.ContainsFunc(reserved(), func(p netip.Prefix) bool { return p.Contains(addr) })
}

func embedded(addr netip.Addr) (netip.Addr, bool) {
	if addr.Is4In6() {
		return addr.Unmap(), true
	}
	if !addr.Is6() {
		return netip.Addr{}, false
	}
	b := addr.As16()
	switch {
	case netip.MustParsePrefix("64:ff9b::/96").Contains(addr), netip.MustParsePrefix("::/96").Contains(addr):
		return netip.AddrFrom4([4]byte(b[12:16])), true
	case netip.MustParsePrefix("2002::/16").Contains(addr):
		return netip.AddrFrom4([4]byte(b[2:6])), true
	}
	return netip.Addr{}, false
}
