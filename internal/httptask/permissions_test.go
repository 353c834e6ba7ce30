package httptask

import (
	"net/netip"
	"strings"
	"testing"
)

func TestPrivateAddressesAreRefused(t *testing.T) {
	t.Parallel()
	a := newAddresses(Config{})
	for ip := range strings.FieldsSeq(`
		0.0.0.0 0.1.2.3 10.0.0.1 10.255.255.255 100.64.0.1 100.100.100.200 100.127.255.255 127.0.0.1 127.8.9.1
		168.63.129.16 169.254.0.1 169.254.169.254 172.16.0.1 172.31.255.255 192.0.0.8 192.0.2.1 192.88.99.1
		192.168.0.1 192.168.255.255 198.18.0.1 198.19.255.255 198.51.100.7 203.0.113.7 224.0.0.1
		239.255.255.255 240.0.0.1 255.255.255.255
		:: ::1 ::2 ::127.0.0.1 ::10.0.0.1 ::8.8.8.8 ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:a9fe:a9fe
		::ffff:0.0.0.0 ::ffff:0:127.0.0.1 64:ff9b:: 64:ff9b::7f00:1 64:ff9b::169.254.169.254 64:ff9b:1::1
		64:ff9b:1::8.8.8.8 100::1 2001::1 2001:0:4136:e378:8000:63bf:3fff:fdd2 2001:2::1 2001:10::1 2001:20::1
		2001:db8::1 2002:7f00:: 2002:7f00:1:: 2002:a00:1::1 2002:c0a8:1::5 2002:a9fe:a9fe::
		2607:f8b0::5efe:10.0.0.1 2607:f8b0::200:5efe:127.0.0.1 3fff::1 3fff:fff::1 4000::1 5f00::1 fc00::1
		fd00:ec2::254 fe80::1 fe80::1%eth0 febf::1 fec0::1 ff02::1 ff0e::1`) {
		if addr := netip.MustParseAddr(ip); !a.private(addr, nil) {
			t.Errorf("%s may be called", ip)
		}
	}
	for ip := range strings.FieldsSeq(`
		1.1.1.1 8.8.8.8 9.255.255.255 11.0.0.1 100.63.255.255 100.128.0.1 126.255.255.255 128.0.0.1 168.63.129.17
		169.253.255.255 172.15.255.255 172.32.0.1 192.167.255.255 192.169.0.1 198.17.255.255 198.20.0.1 223.255.255.255
		::ffff:8.8.8.8 64:ff9b::8.8.8.8 2001:200::1 2001:4860:4860::8888 2002:808:808:: 2606:4700::1111 3ffe::1`) {
		if addr := netip.MustParseAddr(ip); a.private(addr, nil) {
			t.Errorf("%s is refused", ip)
		}
	}
}

func TestPrivateHostsAllow(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		entry, addr string // as the URL has it
		dialled     string
		want        bool
	}{
		{"api.internal", "api.internal:443", "10.0.0.7:443", true},
		{"API.internal.", "api.internal:443", "10.0.0.7:443", true},
		{"api.internal:443", "api.internal:443", "10.0.0.7:443", true},
		{"api.internal:80", "api.internal:443", "10.0.0.7:443", false},
		{"other.internal", "api.internal:443", "10.0.0.7:443", false},
		{"10.0.0.7", "api.internal:443", "10.0.0.7:443", true},
		{"10.0.0.8", "api.internal:443", "10.0.0.7:443", false},
		{"10.0.0.0/8", "api.internal:443", "10.0.0.7:443", true},
		{"10.0.0.9/8", "api.internal:443", "10.0.0.7:443", true},
		{"11.0.0.0/8", "api.internal:443", "10.0.0.7:443", false},
		{"127.0.0.1", "[::ffff:127.0.0.1]:80", "[::ffff:127.0.0.1]:80", true},
		{"127.0.0.1", "[::1]:80", "[::1]:80", false},
		{"::1", "[::1]:80", "[::1]:80", true},
		{"[::1]:80", "[0::1]:80", "[::1]:80", true},
		{"fe80::/10", "[fe80::1%eth0]:80", "[fe80::1%eth0]:80", true},
		{"10.0.0.0/8", "x:80", "[64:ff9b::10.0.0.1]:80", true},
		{"nonsense/99", "x:80", "not an address", false},
	} {
		control := newAddresses(Config{PrivateHosts: []string{c.entry}}).control(c.addr)
		if got := control(t.Context(), "tcp", c.dialled, nil) == nil; got != c.want {
			t.Errorf("%s with %s, to %s: allowed %v", c.entry, c.addr, c.dialled, got)
		}
	}
}
