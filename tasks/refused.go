package tasks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"

	"github.com/jackc/pgx/v5"
)

// A worker publishes, with its heartbeat, what its task http may do. So one that lacks a secret or a permission
// for a call knows whether another worker can make it: then the call goes back unsent. Else it fails, with the
// reason.

// permissions are what a worker's task http may do. They are never changed.
type permissions struct {
	hosts     map[string]bool // empty: all
	secrets   *secrets
	addresses *addresses
}

func newPermissions(cfg HTTPConfig) (permissions, error) {
	s, err := newSecrets(cfg.Secrets)
	return permissions{hosts: hostSet(cfg.Hosts), secrets: s, addresses: newAddresses(cfg)}, err
}

// read reads a call that may be made, as far as that is known before there is a connection.
func (p permissions) read(call *Call) (*httpCall, error) {
	c, err := readHTTPCall(call, p.secrets)
	if err != nil {
		return nil, Permanent(fmt.Errorf("call_data: %w", err))
	}
	if err := p.mayCall(c.request); err != nil {
		return nil, Permanent(fmt.Errorf("%s: %w", c.shown, err))
	}
	return c, nil
}

// mayCall says whether a request may go to the hosts that it names; which addresses may, the dialer says.
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

// mayReach says whether a request may go to this address; onlyPrivate: to a private one alone.
func (p permissions) mayReach(r *http.Request, ip netip.Addr, onlyPrivate bool) error {
	for _, h := range hostsOf(r) {
		if err := p.addresses.refusal(h, ip); err != nil {
			return err
		}
	}
	if onlyPrivate && !p.addresses.isPrivate(ip) {
		return Permanent(&refusedError{errInClear, ip})
	}
	return nil
}

// may says whether a call may be made, to this address of its host where that is known.
func (p permissions) may(call *Call, ip netip.Addr) bool {
	c, err := p.read(call)
	return err == nil && (!ip.IsValid() || p.mayReach(c.request, ip, c.private) == nil)
}

// refusedError says that this worker may not make a call, and another may be able to.
type refusedError struct {
	err error
	ip  netip.Addr // that the call's host has; not valid: that is not known
}

func (e *refusedError) Error() string { return e.err.Error() }
func (e *refusedError) Unwrap() error { return e.err }

func refused(err error) error { return &refusedError{err: err} }

// httpSettings are an HTTPConfig as it is published and compared: of a secret the hosts, never the value.
type httpSettings struct {
	Hosts        []string            `json:"hosts"`
	PrivateHosts []string            `json:"private_hosts"`
	AllowPrivate bool                `json:"allow_private"`
	Store        string              `json:"store"`
	Secrets      map[string][]string `json:"secrets"`
}

// httpSettings are the worker's, as JSON; nil: it does not take the task http.
func (w *Worker) httpSettings() *string {
	task := w.http.Load()
	if task == nil {
		return nil
	}
	cfg := task.cfg
	s := httpSettings{sorted(cfg.Hosts), sorted(cfg.PrivateHosts), cfg.AllowPrivate, cfg.Store, map[string][]string{}}
	for name, secret := range cfg.Secrets {
		s.Secrets[name] = sorted(secret.Hosts)
	}
	text, _ := json.Marshal(s) // strings always can
	return new(string(text))
}

// sorted is a list in the one form in which it is compared: [] where it is empty.
func sorted(list []string) []string {
	list = append([]string{}, list...)
	slices.Sort(list)
	return slices.Compact(list)
}

// may says whether a worker with these settings may make a call.
func (s httpSettings) may(call *Call, ip netip.Addr) bool {
	cfg := HTTPConfig{Hosts: s.Hosts, PrivateHosts: s.PrivateHosts, AllowPrivate: s.AllowPrivate, Secrets: map[string]Secret{}}
	for name, hosts := range s.Secrets {
		cfg.Secrets[name] = Secret{Value: hiddenText + hiddenText, Hosts: hosts}
	}
	p, err := newPermissions(cfg)
	return err == nil && p.may(call, ip)
}

// otherMay is why a call goes back unsent that this worker refused: another live one may make it, or whether one
// may could not be asked. Nil: none may, or it was not refused.
func (a *attempt) otherMay(ctx context.Context, call *Call, err error) error {
	refusal, ok := errors.AsType[*refusedError](err)
	if !ok {
		return nil
	}
	others, askErr := a.w.others(ctx, a.Queue)
	if askErr == nil && !slices.ContainsFunc(others, func(s *httpSettings) bool { return s == nil || s.may(call, refusal.ip) }) {
		return nil
	}
	return fmt.Errorf("handed back for another worker: %w", err)
}

// others are what the other live workers that take http calls of a queue may do; nil: one does not say.
func (w *Worker) others(ctx context.Context, queue string) ([]*httpSettings, error) {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	rows, err := w.cfg.Pool.Query(ctx, othersSQL, w.id, queue)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[*httpSettings])
}

const othersSQL = `
SELECT w.http
FROM call_workers w
LEFT JOIN call_queues q ON q.name = $2
WHERE callq_alive(w.heartbeat_at) AND w.id <> $1 AND 'http' = ANY(w.tasks)
  AND coalesce(q.label = '' OR q.label = ANY(w.labels), true)`
