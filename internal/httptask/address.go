package httptask

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"syscall"

	"github.com/callq/callq/internal/outcome"
)

// addresses decides where the task http may connect. The address that is dialled is what counts,
// after DNS: a name that leads inside is refused as the address would be.
type addresses struct {
	any     bool
	names   map[string]bool // hosts, or host:port, that may have any address
	allowed []netip.Prefix  // private, and allowed
	private []netip.Prefix
}

func newAddresses(cfg Config) *addresses {
	a := &addresses{any: cfg.AllowPrivate, names: hostSet(cfg.PrivateHosts)}
	for _, entry := range cfg.PrivateHosts {
		if prefix, err := netip.ParsePrefix(entry); err == nil {
			a.allowed = append(a.allowed, prefix.Masked())
		} else if addr, err := netip.ParseAddr(strings.Trim(entry, "[]")); err == nil {
			addr = addr.Unmap()
			a.allowed = append(a.allowed, netip.PrefixFrom(addr, addr.BitLen()))
		}
	}
	for block := range strings.FieldsSeq(privateBlocks) {
		if prefix, err := netip.ParsePrefix(block); err == nil { // a test parses them all
			a.private = append(a.private, prefix)
		}
	}
	return a
}

// privateBlocks are the blocks that are not the public Internet (IANA's special-purpose registries),
// multicast, and the address of Azure's platform. Of IPv6 only 2000::/3 is public, see refused.
const privateBlocks = `
	0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24
	192.0.2.0/24 192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24
	224.0.0.0/4 240.0.0.0/4 168.63.129.16/32
	2001::/23 2001:db8::/32 3fff::/20`

// control is a net.Dialer's ControlContext for addr, as the URL has it: it refuses private addresses.
func (a *addresses) control(addr string) func(context.Context, string, string, syscall.RawConn) error {
	host, port, err := net.SplitHostPort(addr)
	to := hostPort{host, port}
	if err == nil && a.named(to) {
		return nil
	}
	return func(_ context.Context, _, address string, _ syscall.RawConn) error {
		target, err := netip.ParseAddrPort(address)
		if err != nil {
			return outcome.Permanent(fmt.Errorf("%s is no address that may be called: %w", address, err))
		}
		return a.refusal(to, target.Addr())
	}
}

// refusal is why nothing may go to this address for a host; nil: it may.
func (a *addresses) refusal(h hostPort, ip netip.Addr) error {
	if a.named(h) || !a.refused(ip) {
		return nil
	}
	err := fmt.Errorf("%s has the private address %s, which only http_task.private_hosts can allow", h.host, ip)
	return outcome.Permanent(&RefusedError{err, ip})
}

// named says that a host may have any address.
func (a *addresses) named(h hostPort) bool { return a.any || h.in(a.names) }

// refused says that an address is private and not allowed.
func (a *addresses) refused(ip netip.Addr) bool { return a.judge(ip, a.allowed) }

// isPrivate says that an address is not on the public Internet.
func (a *addresses) isPrivate(ip netip.Addr) bool { return a.judge(ip, nil) }

// judge says that an address is private and not among those allowed. An IPv4 address inside an IPv6
// one (mapped, NAT64, 6to4) is judged itself; forms that nothing public uses are private.
func (a *addresses) judge(ip netip.Addr, allowed []netip.Prefix) bool {
	ip = ip.Unmap().WithZone("")
	if within(ip, allowed) {
		return false
	}
	if ip.Is6() {
		raw := ip.As16()
		switch {
		case netip.PrefixFrom(nat64(), 96).Contains(ip):
			return a.judge(netip.AddrFrom4([4]byte(raw[12:16])), allowed)
		case raw[0] == 0x20 && raw[1] == 0x02: // 6to4
			return a.judge(netip.AddrFrom4([4]byte(raw[2:6])), allowed)
		case raw[8]&^0x02 == 0 && raw[9] == 0 && raw[10] == 0x5e && raw[11] == 0xfe: // ISATAP
			return true
		case raw[0]&0xe0 != 0x20: // all but 2000::/3: loopback, link-local, ULA, multicast, …
			return true
		}
	}
	return within(ip, a.private)
}

// nat64 is 64:ff9b::, through which a network without IPv4 reaches it.
func nat64() netip.Addr { return netip.AddrFrom16([16]byte{1: 0x64, 2: 0xff, 3: 0x9b}) }

func within(ip netip.Addr, blocks []netip.Prefix) bool {
	for _, block := range blocks {
		if block.Contains(ip) {
			return true
		}
	}
	return false
}

// hostSet indexes hosts, given as host or host:port, in one form.
func hostSet(hosts []string) map[string]bool {
	set := make(map[string]bool, len(hosts))
	for _, entry := range hosts {
		host, port, err := net.SplitHostPort(entry)
		if err != nil {
			host, port = strings.Trim(entry, "[]"), ""
		}
		set[net.JoinHostPort(oneForm(host), port)] = true
	}
	return set
}

// hostPort is a host that a request names, in any form.
type hostPort struct{ host, port string }

func (h hostPort) String() string { return net.JoinHostPort(h.host, h.port) }

func (h hostPort) in(set map[string]bool) bool {
	host := oneForm(h.host)
	return set[net.JoinHostPort(host, "")] || set[net.JoinHostPort(host, h.port)]
}

// hostsOf are the hosts that a request names: its URL's, and that of its Host header where it has another one. What
// shares an address with many names goes by the header, so a list of hosts must have both.
func hostsOf(r *http.Request) []hostPort {
	hosts := []hostPort{{r.URL.Hostname(), portOf(r.URL)}}
	if r.Host == "" || r.Host == r.URL.Host {
		return hosts
	}
	host, port, err := net.SplitHostPort(r.Host)
	if err != nil {
		host, port = strings.Trim(r.Host, "[]"), portOf(r.URL)
	}
	return append(hosts, hostPort{host, port})
}

func portOf(u *url.URL) string {
	switch {
	case u.Port() != "":
		return u.Port()
	case u.Scheme == "https":
		return "443"
	}
	return "80"
}

func oneForm(host string) string {
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip.Unmap().String()
	}
	return strings.TrimSuffix(strings.ToLower(host), ".")
}
