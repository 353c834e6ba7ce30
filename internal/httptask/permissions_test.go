package httptask

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
)

// names is a DNS server on loopback: what it answers to each name, one set after the other, the last for ever.
type names struct {
	mu   sync.Mutex
	sets map[string][][]netip.Addr
}

// resolver asks the server, whatever the system has.
func (n *names) resolver(t *testing.T) *net.Resolver {
	t.Helper()
	conn, err := new(net.ListenConfig).ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	go func() {
		for query := make([]byte, 512); ; {
			size, from, err := conn.ReadFrom(query)
			if err != nil {
				return
			}
			_, _ = conn.WriteTo(n.answer(query[:size]), from)
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
}

const (
	typeA    = 1
	typeAAAA = 28
)

// answer answers one query, of one question, as RFC 1035 has it.
func (n *names) answer(query []byte) []byte {
	var labels []string
	at := 12
	for ; query[at] > 0; at += int(query[at]) + 1 {
		labels = append(labels, string(query[at+1:at+1+int(query[at])]))
	}
	end := at + 5
	wanted := binary.BigEndian.Uint16(query[at+1:])
	name := strings.Join(labels, ".")

	n.mu.Lock()
	sets := n.sets[name]
	if len(sets) > 1 && wanted == typeA { // each look-up asks for both types, once
		n.sets[name] = sets[1:]
	}
	n.mu.Unlock()
	answer := append(append([]byte{}, query[:2]...), 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0)
	answer = append(answer, query[12:end]...)
	if len(sets) == 0 {
		answer[3] |= 3 // no such name
		return answer
	}
	for _, addr := range sets[0] {
		if kind := map[bool]uint16{true: typeA, false: typeAAAA}[addr.Is4()]; kind == wanted {
			raw := addr.AsSlice()
			answer = append(answer, 0xc0, 12, 0, byte(kind), 0, 1, 0, 0, 0, 0, 0, byte(len(raw)))
			answer = append(answer, raw...)
			answer[7]++
		}
	}
	return answer
}

// inside is a server of ours that nobody may call, on both loopback addresses and one port where the system has both.
func inside(t *testing.T) (port string, connected *atomic.Int32) {
	t.Helper()
	connected = new(atomic.Int32)
	port = "0"
	for _, network := range []string{"tcp4", "tcp6"} {
		addr := map[string]string{"tcp4": "127.0.0.1:", "tcp6": "[::1]:"}[network]
		listener, err := new(net.ListenConfig).Listen(t.Context(), network, addr+port)
		if err != nil {
			if network == "tcp6" {
				break // the system has none, or the port is taken there
			}
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = listener.Close() })
		_, port, _ = net.SplitHostPort(listener.Addr().String())
		go func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				connected.Add(1)
				_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
				_ = conn.Close()
			}
		}()
	}
	return port, connected
}

// outside is a server at an address that is allowed, on a port that is given.
func outside(t *testing.T, port string, handler http.HandlerFunc) {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.2:"+port)
	if errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Skipf("it needs 127.0.0.2, a second loopback address (macOS: ifconfig lo0 alias 127.0.0.2): %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: handler}}
	server.Start()
	t.Cleanup(server.Close)
}

func addrs(list string) (set []netip.Addr) {
	for text := range strings.FieldsSeq(list) {
		set = append(set, netip.MustParseAddr(text))
	}
	return set
}

// Through the whole way of a call: no way of writing or resolving a host leads to where it may not.
func TestNothingLeavesForInside(t *testing.T) {
	t.Parallel()
	port, connected := inside(t)
	const refused, unreadable = "private address", "call_data"
	cases := map[string]string{ // by the URL's host
		// the address itself, as people write it
		"127.0.0.1": refused, "127.8.9.1": refused, "0.0.0.0": refused, "10.0.0.1": refused, "172.16.0.1": refused,
		"192.168.1.1": refused, "169.254.169.254": refused, "100.100.100.200": refused, "168.63.129.16": refused,
		"100.64.0.1": refused, "192.0.0.192": refused, "198.18.0.1": refused, "203.0.113.1": refused, "224.0.0.1": refused,
		"255.255.255.255": refused, "[::1]": refused, "[::]": refused, "[::ffff:127.0.0.1]": refused, "[::ffff:7f00:1]": refused,
		"[0:0:0:0:0:ffff:a9fe:a9fe]": refused, "[::127.0.0.1]": refused, "[64:ff9b::127.0.0.1]": refused,
		"[64:ff9b:1::7f00:1]": refused, "[2002:7f00:1::]": refused, "[2001::1]": refused, "[fe80::1]": refused, "[fc00::1]": refused,
		"[fd00:ec2::254]": refused, "[ff02::1]": refused, "[2001:db8::1]": refused, "[2607:f8b0::5efe:7f00:1]": refused,
		// with more around it
		"user:pw@127.0.0.1": refused, "api.example@127.0.0.1": refused, "localhost": refused, "LOCALHOST": refused,
		// as only some resolvers read it
		"2130706433": unreadable, "0x7f000001": unreadable, "0X7F000001": unreadable, "017700000001": unreadable, "0177.0.0.1": unreadable,
		"0x7f.0.0.1": unreadable, "127.1": unreadable, "127.0.1": unreadable, "127.1.": unreadable, "127.0.0.1.": unreadable, "127.0.0.0x1": unreadable,
		"0": unreadable, "00000.0.0.0": unreadable, "1.2.3.4.5": unreadable, "127.0.0.1%00.example": unreadable,
		"[::1%25lo]": unreadable, "[fe80::1%25eth0]": unreadable, "[::1": unreadable, "127。0。0。1": unreadable, "①②⑦.0.0.1": unreadable,
		"127.0.0.1\\t": unreadable, "127.0.0.1#@api.example": unreadable, "[127.0.0.1]": unreadable,
		"[v1.x]": unreadable, "localhost\\u0000.example": unreadable,
	}
	zone := &names{sets: map[string][][]netip.Addr{}}
	for i, answers := range []string{ // and what a name can lead to
		"127.0.0.1", "0.0.0.0", "10.1.2.3", "172.31.255.255", "192.168.0.10", "169.254.169.254", "100.64.0.1", "192.0.0.170",
		"198.19.255.255", "224.0.0.251", "240.0.0.1", "255.255.255.255", "::1", "::", "::ffff:127.0.0.1", "::ffff:169.254.169.254",
		"::127.0.0.1", "64:ff9b::10.0.0.1", "64:ff9b:1::1", "2002:c0a8:101::1", "2001:0:4136:e378::1", "fe80::5efe:127.0.0.1", "fd00:ec2::254",
		"fec0::1", "ff0e::1", "4000::1", "127.0.0.1 ::1", "10.0.0.1 10.0.0.2 fd00::1",
	} {
		name := fmt.Sprintf("name-%d.test", i)
		zone.sets[name] = [][]netip.Addr{addrs(answers)}
		cases[name] = refused
		if i == 0 {
			cases[name+"."], cases["NAME-0.Test"], cases["127.0.0.1@"+name] = refused, refused, refused
		}
	}
	if len(cases) < 90 {
		t.Errorf("%d cases", len(cases))
	}
	for _, scheme := range []string{"http", "https"} {
		h := newTaskOf(t, Config{Resolver: zone.resolver(t)})
		for host, want := range cases {
			call := callOf(`{"url":"%s://%s:%s/"}`, scheme, host, port)
			if strings.Contains(host, "#") {
				call = callOf(`{"url":"%s://%s/"}`, scheme, host)
			}
			s := h.Run(t.Context(), call, bound, func(context.Context) (Grant, error) {
				t.Errorf("%s://%s: there is a connection", scheme, host)
				return Grant{}, errNoStart
			})
			if host == "127.0.0.1#@api.example" { // the host ends there: port 80 of it
				want = refused
			}
			if !isPermanent(s.Err) || !strings.Contains(s.Err.Error(), want) || s.Wrote {
				t.Errorf("%s://%s: got %+v, want %s", scheme, host, s, want)
			}
		}
	}
	if n := connected.Load(); n > 0 {
		t.Errorf("%d connections", n)
	}
}

// A name that leads to an allowed address first and inside later, or to both at once.
func TestRebinding(t *testing.T) {
	t.Parallel()
	port, connected := inside(t)
	var served atomic.Int32
	outside(t, port, func(http.ResponseWriter, *http.Request) { served.Add(1) })
	zone := &names{sets: map[string][][]netip.Addr{
		"later.test":  {addrs("127.0.0.2"), addrs("127.0.0.1")},
		"both.test":   {addrs("127.0.0.1 127.0.0.2")},
		"also6.test":  {addrs("::1 127.0.0.2")},
		"mapped.test": {addrs("::ffff:127.0.0.1 127.0.0.2")},
	}}
	h := newTaskOf(t, Config{PrivateHosts: []string{"127.0.0.2"}, Resolver: zone.resolver(t)})
	call := func(name string) Sending {
		return h.Run(t.Context(), callOf(`{"url":"http://%s:%s/"}`, name, port), bound, granted)
	}
	if s := call("later.test"); s.Err != nil || served.Load() != 1 {
		t.Errorf("the first answer: %+v", s)
	}
	if s := call("later.test"); s.Err != nil || served.Load() != 2 { // over the same connection
		t.Errorf("while it is connected: %+v", s)
	}
	h.Close()
	if s := call("later.test"); !isPermanent(s.Err) || s.Wrote {
		t.Errorf("the second answer: %+v", s)
	}
	for _, name := range []string{"both.test", "also6.test", "mapped.test"} {
		for range 20 {
			call(name)
			h.Close()
		}
	}
	if n := connected.Load(); n > 0 {
		t.Errorf("%d connections inside", n)
	}
	if served.Load() <= 2 {
		t.Error("what leads to both never led to the one that may be called")
	}
}

// Proxies of the environment would see every call and resolve names themselves: there are none.
func TestProxiesOfTheEnvironmentAreNotUsed(t *testing.T) {
	proxy, asked := counting(t, false)
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"} {
		t.Setenv(name, proxy.URL)
	}
	port, _ := inside(t)
	var served atomic.Int32
	outside(t, port, func(http.ResponseWriter, *http.Request) { served.Add(1) })
	zone := &names{sets: map[string][][]netip.Addr{"api.test": {addrs("127.0.0.2")}}}
	h := newTaskOf(t, Config{PrivateHosts: []string{"127.0.0.2"}, Resolver: zone.resolver(t)})
	s := h.Run(t.Context(), callOf(`{"url":"http://api.test:%s/"}`, port), bound, granted)
	if s.Err != nil || served.Load() != 1 || asked.Load() > 0 {
		t.Errorf("got %+v; %d requests served, %d through the proxy", s, served.Load(), asked.Load())
	}
}

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
		2001:db8::1 2002:7f00:: 2002:7f00:1:: 2002:a00:1::1 2002:c0a8:1::5 2002:a9fe:a9fe:: 2002:808:808::
		2607:f8b0::5efe:10.0.0.1 2607:f8b0::200:5efe:127.0.0.1 3fff::1 3fff:fff::1 4000::1 5f00::1 fc00::1
		fd00:ec2::254 fe80::1 fe80::1%eth0 febf::1 fec0::1 ff02::1 ff0e::1`) {
		if addr := netip.MustParseAddr(ip); !a.private(addr, nil) {
			t.Errorf("%s may be called", ip)
		}
	}
	for ip := range strings.FieldsSeq(`
		1.1.1.1 8.8.8.8 9.255.255.255 11.0.0.1 100.63.255.255 100.128.0.1 126.255.255.255 128.0.0.1 168.63.129.17
		169.253.255.255 172.15.255.255 172.32.0.1 192.167.255.255 192.169.0.1 198.17.255.255 198.20.0.1 223.255.255.255
		::ffff:8.8.8.8 64:ff9b::8.8.8.8 2001:200::1 2001:4860:4860::8888 2606:4700::1111 3ffe::1`) {
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
