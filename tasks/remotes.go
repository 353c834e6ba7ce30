package tasks

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/callq/callq/internal/httptask"
	"github.com/callq/callq/internal/ledger"
)

const (
	remotesEvery = time.Second
	maxRemotes   = 1000 // limits and keys of which answers are noted at once; of more, some wait for their next answer
)

// remotes are the newest answers of APIs that say something of their own limits, until tellRemotes stores that.
type remotes struct {
	mu    sync.Mutex
	noted map[string]noted // by whom they are about: see noted.about
}

// noted is an answer that names limits.
type noted struct {
	limits, keys []string // of its attempt
	host         string
	says         answer
	from         func(hosts []string) bool
	at           time.Time // when it was read
	counted      time.Time // the API counted its request after that
}

// answer is a *httptask.Answer.
type answer interface {
	Refusal(httptask.Forms) *httptask.Refusal
	Remotes(httptask.Forms) []httptask.Remote
}

func (n noted) about() string {
	return strings.Join([]string{n.host, strings.Join(n.limits, "\x00"), strings.Join(n.keys, "\x00")}, "\x01")
}

// note notes an answer to an attempt's request, unless it names no limit.
func (r *remotes) note(a *attempt, s httptask.Sending) {
	if s.Answer == nil || len(a.Limits) == 0 || len(s.Answer.Remotes(httptask.Forms{})) == 0 {
		return
	}
	s.Result, s.Err = nil, nil // they may be large
	r.add(noted{limits: a.Limits, keys: a.Keys, host: s.Host, says: s.Answer, from: s.From, at: s.Answer.At, counted: a.m0})
}

func (r *remotes) add(n noted) {
	about := n.about()
	r.mu.Lock()
	defer r.mu.Unlock()
	last, known := r.noted[about]
	if known && last.at.After(n.at) || !known && len(r.noted) >= maxRemotes {
		return
	}
	if r.noted == nil {
		r.noted = map[string]noted{}
	}
	r.noted[about] = n
}

// take returns what was noted since it was last called.
func (r *remotes) take() map[string]noted {
	r.mu.Lock()
	defer r.mu.Unlock()
	taken := r.noted
	r.noted = nil
	return taken
}

// tellRemotes stores what APIs have said of their limits since it did so last. What it cannot store is dropped: the next answers say
// it anew.
func (w *Worker) tellRemotes(ctx context.Context) error {
	taken := w.remotes.take()
	if len(taken) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	var names []string
	for _, n := range taken {
		names = append(names, n.limits...)
	}
	slices.Sort(names)
	c := clockReading{sent: time.Now()}
	rules, err := ledger.RemoteRules(ctx, w.db, slices.Compact(names))
	if err != nil || len(rules) == 0 {
		return err
	}
	c.received, c.at = time.Now(), rules[0].Now
	if told := remotesOf(taken, rules, c); len(told) > 0 {
		return ledger.TellRemotes(ctx, w.db, told)
	}
	return nil
}

// remotesOf is what answers say of limits: of each, and each of its keys, the newest.
func remotesOf(taken map[string]noted, rules []ledger.RemoteRule, c clockReading) []ledger.Remote {
	type limitKey struct{ name, key string }
	newest := map[limitKey]ledger.Remote{}
	for _, n := range taken {
		for i, says := range n.of(rules) {
			rule := rules[i]
			key := ""
			if rule.PerKey {
				key = n.keys[slices.Index(n.limits, rule.Name)]
			}
			told := ledger.Remote{
				Limit: rule.Name, Key: key, Answered: c.at.Add(n.at.Sub(c.received)), Since: rule.Since(c.at.Add(n.counted.Sub(c.received))),
			}
			if says.Limit >= 0 {
				told.Most = &says.Limit
			}
			if says.Remaining >= 0 {
				told.Remaining = &says.Remaining
			}
			if says.Reset >= 0 {
				told.Reset = new(c.at.Add(n.at.Sub(c.sent) + says.Reset))
			}
			if last, known := newest[limitKey{rule.Name, key}]; !known || told.Answered.After(last.Answered) {
				newest[limitKey{rule.Name, key}] = told
			}
		}
	}
	told := make([]ledger.Remote, 0, len(newest))
	for _, r := range newest {
		told = append(told, r)
	}
	return told
}

// of is what an answer says of limits, by the place of their rules. What it names as a limit is about that one. Anything else is about
// the one limit with a window that counts the call, if there is but one: of several such, the first that has no name, or that of what
// the limit counts.
func (n noted) of(rules []ledger.RemoteRule) map[int]httptask.Remote {
	mine, said := map[string]int{}, map[int]httptask.Remote{} // mine: those that the answer may be about
	windows := 0
	var only int
	for i, rule := range rules {
		if slices.Contains(n.limits, rule.Name) && n.from(rule.Hosts) {
			mine[strings.ToLower(rule.Name)] = i
			if rule.Rate.Window > 0 {
				windows, only = windows+1, i
			}
		}
	}
	named := func(r httptask.Remote) (int, bool) {
		i, ok := mine[strings.ToLower(r.Name)]
		return i, ok && r.Name != ""
	}
	for _, i := range mine {
		for _, r := range n.remotes(rules[i]) {
			if is, ok := named(r); ok && is == i {
				said[i] = r
				break
			}
		}
	}
	if _, known := said[only]; windows != 1 || known {
		return said
	}
	others := slices.DeleteFunc(n.remotes(rules[only]), func(r httptask.Remote) bool { _, ok := named(r); return ok })
	if len(others) > 1 {
		counts := "requests"
		if rules[only].CountCost {
			counts = "tokens"
		}
		others = slices.DeleteFunc(others, func(r httptask.Remote) bool { return cmp.Or(r.Name, counts) != counts })
	}
	if len(others) > 0 {
		said[only] = others[0]
	}
	return said
}

// remotes are what the answer says, as a limit's rule reads it, unless it is a refusal.
func (n noted) remotes(rule ledger.RemoteRule) []httptask.Remote {
	forms := httptask.Forms{Wait: rule.Wait, Off: rule.Off}
	if n.says.Refusal(forms) != nil {
		return nil
	}
	return n.says.Remotes(forms)
}
