package httptask

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"

	"github.com/callq/callq/internal/outcome"
)

// A worker publishes, with its heartbeat, what its task http may do. So one that lacks a secret or a permission
// for a call knows whether another worker can make it: then the call goes back unsent. Else it fails, with the
// reason.

// permissions are what a worker's task http may do. They are never changed.
type permissions struct {
	hosts     map[string]bool // empty: all
	secrets   secrets
	addresses *addresses
}

func newPermissions(cfg Config) (permissions, error) {
	s, err := newSecrets(cfg.Secrets)
	return permissions{hosts: hostSet(cfg.Hosts), secrets: s, addresses: newAddresses(cfg)}, err
}

// read reads a call that may be made, as far as that is known before there is a connection.
func (p permissions) read(call *Call) (*request, error) {
	r, err := readRequest(call, p.secrets)
	if err != nil {
		return nil, outcome.Permanent(fmt.Errorf("call_data: %w", err))
	}
	if err := p.mayCall(r.request); err != nil {
		return nil, outcome.Permanent(fmt.Errorf("%s: %w", r.shown, err))
	}
	return r, nil
}

// mayCall refuses requests to hosts that may not be called; which addresses may, the dialer says.
func (p permissions) mayCall(r *http.Request) error {
	if len(p.hosts) == 0 {
		return nil
	}
	for i, h := range hostsOf(r) {
		switch {
		case h.in(p.hosts):
		case i == 0:
			return refused(errors.New("the host is not in http_task.hosts"))
		default:
			return refused(errors.New("the host of its Host header is not in http_task.hosts"))
		}
	}
	return nil
}

// mayReach refuses addresses to which a request may not go; onlyPrivate: all but private ones.
func (p permissions) mayReach(r *http.Request, ip netip.Addr, onlyPrivate bool) error {
	for _, h := range hostsOf(r) {
		if err := p.addresses.refusal(h, ip); err != nil {
			return err
		}
	}
	if onlyPrivate && !p.addresses.isPrivate(ip) {
		return outcome.Permanent(&RefusedError{errInClear, ip})
	}
	return nil
}

// RefusedError says that this worker may not make a call, and another may be able to.
type RefusedError struct {
	err error
	ip  netip.Addr // that the call's host has; not valid: that is not known
}

func (e *RefusedError) Error() string { return e.err.Error() }
func (e *RefusedError) Unwrap() error { return e.err }

func refused(err error) error { return &RefusedError{err: err} }

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

// May reports whether a worker with these settings may make a call that another refused so. Nil settings, those of an
// older version, may.
func (s *Settings) May(call *Call, refusal *RefusedError) bool {
	if s == nil {
		return true
	}
	cfg := Config{Hosts: s.Hosts, PrivateHosts: s.PrivateHosts, AllowPrivate: s.AllowPrivate, Secrets: map[string]Secret{}}
	for name, hosts := range s.Secrets {
		cfg.Secrets[name] = Secret{Value: hiddenText + hiddenText, Hosts: hosts}
	}
	p, err := newPermissions(cfg)
	if err != nil {
		return false
	}
	r, err := p.read(call)
	return err == nil && (!refusal.ip.IsValid() || p.mayReach(r.request, refusal.ip, r.private) == nil)
}
