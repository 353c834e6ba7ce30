package httptask

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"syscall"

	"github.com/callq/callq/internal/outcome"
)

// read reads a call that may be made, as far as that is known before there is a connection.
func (t *Task) read(call *Call) (*request, error) {
	r, err := readRequest(call, t.secrets)
	if err != nil {
		return nil, outcome.Permanent(fmt.Errorf("call_data: %w", err))
	}
	if err := t.mayCall(r.request.URL); err != nil {
		return nil, outcome.Permanent(fmt.Errorf("%s: %w", r.shown, err))
	}
	return r, nil
}

// mayCall refuses requests to hosts that may not be called; the dialer decides which addresses may.
func (t *Task) mayCall(u *url.URL) error {
	if len(t.hosts) > 0 && !t.hosts.have(hostOf(u)) {
		return refused(errors.New("the host is not in http_task.hosts"))
	}
	return nil
}

// mayReach refuses addresses to which a request may not go; onlyPrivate: all but private ones.
func (t *Task) mayReach(u *url.URL, ip netip.Addr, onlyPrivate bool) error {
	if err := t.addresses.refusal(hostOf(u), ip); err != nil {
		return err
	}
	if onlyPrivate && !t.addresses.private(ip, nil) {
		return outcome.Permanent(&RefusedError{errors.New("a secret may not go over http to a public address: " +
			"use https, or name its host as http://… in http_task.secrets"), ip})
	}
	return nil
}

// RefusedError means that this worker may not make a call, and another may be able to: workers publish their Settings with their
// heartbeats. If one can, the call goes back unsent; else it fails, with the reason.
type RefusedError struct {
	error
	ip netip.Addr // that the call's host has; not valid: that is not known
}

func (e *RefusedError) Unwrap() error { return e.error }

func refused(err error) error { return &RefusedError{error: err} }

// Settings are a Config as it is published and compared: of a secret the hosts, never the value.
type Settings struct {
	Hosts        []string            `json:"hosts"`
	PrivateHosts []string            `json:"private_hosts"`
	AllowPrivate bool                `json:"allow_private"`
	Store        string              `json:"store"`
	Secrets      map[string][]string `json:"secrets"`
}

// Settings returns those of the task.
func (t *Task) Settings() *Settings {
	s := &Settings{sorted(t.cfg.Hosts), sorted(t.cfg.PrivateHosts), t.cfg.AllowPrivate, t.cfg.Store, map[string][]string{}}
	for name, secret := range t.cfg.Secrets {
		s.Secrets[name] = sorted(secret.Hosts)
	}
	return s
}

// sorted is a list in the one form in which it is compared: [] where it is empty.
func sorted(list []string) []string {
	list = append([]string{}, list...)
	slices.Sort(list)
	return slices.Compact(list)
}

// May reports whether a worker with these settings may make a call that another refused so.
func (s *Settings) May(call *Call, refusal *RefusedError) bool {
	cfg := Config{Hosts: s.Hosts, PrivateHosts: s.PrivateHosts, AllowPrivate: s.AllowPrivate, Secrets: map[string]Secret{}}
	for name, hosts := range s.Secrets {
		cfg.Secrets[name] = Secret{Value: hiddenText + hiddenText, Hosts: hosts}
	}
	t, err := New(cfg, 1, nil)
	if err != nil {
		return false
	}
	r, err := t.read(call)
	return err == nil && (!refusal.ip.IsValid() || t.mayReach(r.request.URL, refusal.ip, r.private) == nil)
}

// addresses decides where the task http may connect. The address that is dialled is what counts,
// after DNS: a name that leads inside is refused as the address would be.
type addresses struct {
	any     bool
	names   hosts          // that may have any address
	allowed []netip.Prefix // private, and allowed
	blocks  []netip.Prefix // private
}

func newAddresses(cfg Config) *addresses {
	a := &addresses{any: cfg.AllowPrivate, names: newHosts(cfg.PrivateHosts)}
	for _, entry := range cfg.PrivateHosts {
		if prefix, err := netip.ParsePrefix(entry); err == nil {
			a.allowed = append(a.allowed, prefix.Masked())
		} else if addr, err := netip.ParseAddr(strings.Trim(entry, "[]")); err == nil {
			addr = addr.Unmap()
			a.allowed = append(a.allowed, netip.PrefixFrom(addr, addr.BitLen()))
		}
	}
	for block := range strings.FieldsSeq(privateBlocks) {
		a.blocks = append(a.blocks, netip.MustParsePrefix(block))
	}
	return a
}

// privateBlocks are the blocks that are not the public Internet (IANA's special-purpose registries),
// multicast, and the address of Azure's platform. Of IPv6 only 2000::/3 is public, see private.
const privateBlocks = `
	0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24
	192.0.2.0/24 192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24
	224.0.0.0/4 240.0.0.0/4 168.63.129.16/32
	2001::/23 2001:db8::/32 2002::/16 3fff::/20`

// control is a net.Dialer's ControlContext for addr, as the URL has it: it refuses private addresses.
func (a *addresses) control(addr string) func(context.Context, string, string, syscall.RawConn) error {
	host, port, _ := net.SplitHostPort(addr)
	return func(_ context.Context, _, address string, _ syscall.RawConn) error {
		target, err := netip.ParseAddrPort(address)
		if err != nil {
			return outcome.Permanent(fmt.Errorf("%s is no address that may be called: %w", address, err))
		}
		return a.refusal(hostPort{oneForm(host), port}, target.Addr())
	}
}

// refusal is why nothing may go to this address for a host; nil: it may.
func (a *addresses) refusal(h hostPort, ip netip.Addr) error {
	if a.any || a.names.have(h) || !a.private(ip, a.allowed) {
		return nil
	}
	err := fmt.Errorf("%s has the private address %s, which only http_task.private_hosts can allow", h.host, ip)
	return outcome.Permanent(&RefusedError{err, ip})
}

// private reports that an address is not on the public Internet, nor among those allowed. An IPv4 address inside an IPv6
// one (mapped, NAT64) is judged itself; forms that nothing public uses are private.
func (a *addresses) private(ip netip.Addr, allowed []netip.Prefix) bool {
	ip = ip.Unmap().WithZone("")
	within := func(block netip.Prefix) bool { return block.Contains(ip) }
	if slices.ContainsFunc(allowed, within) {
		return false
	}
	if ip.Is6() {
		raw := ip.As16()
		switch {
		case within(netip.MustParsePrefix("64:ff9b::/96")): // NAT64
			return a.private(netip.AddrFrom4([4]byte(raw[12:16])), allowed)
		case raw[8]&^0x02 == 0 && raw[9] == 0 && raw[10] == 0x5e && raw[11] == 0xfe: // ISATAP
			return true
		case raw[0]&0xe0 != 0x20: // all but 2000::/3: loopback, link-local, ULA, multicast, …
			return true
		}
	}
	return slices.ContainsFunc(a.blocks, within)
}

// hostPort is a host in the one form in which it is compared.
type hostPort struct{ host, port string }

// hosts are a list of them; one without a port stands for all ports.
type hosts map[hostPort]bool

func (s hosts) have(h hostPort) bool { return s[h] || s[hostPort{host: h.host}] }

// newHosts reads a list of host or host:port.
func newHosts(list []string) hosts {
	set := hosts{}
	for _, entry := range list {
		host, port, err := net.SplitHostPort(entry)
		if err != nil { // it has no port
			host = strings.Trim(entry, "[]")
		}
		set[hostPort{oneForm(host), port}] = true
	}
	return set
}

// Among reports whether a host, as in Sending.Host, is among those of a list; none: any is.
func Among(host string, list []string) bool {
	return len(list) == 0 || slices.ContainsFunc(slices.Collect(maps.Keys(newHosts([]string{host}))), newHosts(list).have)
}

// hostOf is the host that a URL names.
func hostOf(u *url.URL) hostPort {
	return hostPort{oneForm(u.Hostname()), cmp.Or(u.Port(), map[string]string{"http": "80", "https": "443"}[u.Scheme])}
}

func oneForm(host string) string {
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip.Unmap().String()
	}
	return strings.TrimSuffix(strings.ToLower(host), ".")
}
