package console

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/callq/callq/internal/access"
	"github.com/callq/callq/internal/actions"
	"github.com/callq/callq/internal/admin"
	"github.com/callq/callq/internal/words"
)

// Actions are asked for by a form, which shows what will happen. Scripts ask in JSON: api.go.

// act is what an action is called, what it does, and who may ask for it.
type act struct {
	Title string // "Pause queue", before its name
	Verb  string // on the button
	Says  string
	role  access.Role
	Risky bool
}

var acts = map[string]act{
	"queues/pause":  {"Pause queue", "Pause", "Nothing of it starts until it is resumed. Calls that were handed over and have not started are recalled; what runs goes on.", access.Operator, false},
	"limits/pause":  {"Pause limit", "Pause", "No call of its queues starts until it is resumed. Calls that were handed over and have not started are recalled; what runs goes on.", access.Operator, false},
	"queues/resume": {"Resume queue", "Resume", "Its calls go on at once, as its limits allow.", access.Operator, false},
	"limits/resume": {"Resume limit", "Resume", "Its calls go on at once, as it allows.", access.Operator, false},
	"limits/set":    {"Set another rate of limit", "Set the rate", "The rate holds over the configuration's until it is reset. Calls that were handed over beyond it and have not started are recalled.", access.Admin, false},
	"limits/reset":  {"Reset limit", "Reset", "The configuration's rate is in force again.", access.Admin, false},
	"limits/open":   {"Open limit", "Open", "Nothing is counted as missing any more, nor as in doubt. Do this only if you know that nothing was sent without callq's knowledge, and that nothing is still on its way. The proof of callq verify rests on it.", access.Admin, true},
	"calls/retry":   {"Retry", "Retry", "They wait again like new calls. What they sent before stays counted, and what they send now counts too.", access.Operator, false},
	"calls/cancel":  {"Cancel", "Cancel", "What waits is never sent. What runs may have reached the API: its attempt stays counted.", access.Operator, true},
	"calls/delete":  {"Delete", "Delete", "They are gone for good. The ledger keeps what they sent.", access.Operator, true},
	"calls/run":     {"Run now", "Run now", "They are due at once, and go as their limits and turns allow.", access.Operator, false},
}

// formBody is the form for an action.
type formBody struct {
	act
	Name, Action string // "queues/pause", and its address
	On           string // what it acts on
	Hidden       [][2]string
	Lengths      bool // asks for how long
	Rate         *string
	Matched      int64
	Typed        bool   // the number must be typed
	From         string // the path of the page before
	Back         string // its address
	Replay       *replayBody
	Wrong        string // why the former try was refused
}

// replayBody is what-if: how a limit's requests would have fared.
type replayBody struct {
	Rate    string
	Wrong   string
	Replay  *admin.Replay
	Since   string
	Address string // of the form that asks for it
	Limit   string
}

// mayAct refuses who may not ask for an action.
func (p *pages) mayAct(r *http.Request, name string) (a act, status int, why string) {
	a, known := acts[name]
	who := access.Of(r.Context())
	switch {
	case !known:
		return a, http.StatusNotFound, "There is no such action."
	case p.Actions == nil, !p.Guard.Closed() && who.Role < a.role:
		return a, http.StatusForbidden, "Nobody acts here without a login: set http.actions: true, or http.auth."
	case who.Role < a.role:
		return a, http.StatusForbidden, fmt.Sprintf("This takes the role %s, and %s has the role %s.", a.role, who.Name, who.Role)
	}
	return a, 0, ""
}

// ask shows the form for an action.
func (p *pages) ask(ctx context.Context, r *http.Request) (*page, error) {
	name := r.PathValue("noun") + "/" + r.PathValue("verb")
	a, status, why := p.mayAct(r, name)
	if status != 0 {
		p.Guard.Refused(r, status, why)
		return refused(status, "%s", why), nil
	}
	return p.form(ctx, name, a, r.URL.Query(), "")
}

func (p *pages) form(ctx context.Context, name string, a act, on url.Values, wrong string) (*page, error) {
	b := formBody{
		act: a, Name: name, Action: p.Prefix + "/do/" + name, Wrong: wrong, Lengths: strings.HasSuffix(name, "/pause"),
		From: on.Get("back"), Back: p.local(cmp.Or(on.Get("back"), "/")),
	}
	hide := func(field, value string) { b.Hidden = append(b.Hidden, [2]string{field, value}) }
	hide("token", rand.Text())
	for _, field := range []string{"queue", "limit", "ids", "status", "task", "code", "error", "since", "all", "back"} {
		if value := on.Get(field); value != "" {
			hide(field, value)
		}
	}
	for _, field := range []string{"key", "shape"} { // which may be empty
		if on.Has(field) {
			hide(field, on.Get(field))
		}
	}
	var err error
	noun, verbName, _ := strings.Cut(name, "/")
	switch noun {
	case "calls":
		err = p.formOfCalls(ctx, &b, verbName, on, hide)
	case "queues":
		b.On = on.Get("queue")
	default:
		b.On = on.Get("limit")
	}
	if key := on.Get("key"); key != "" && noun != "calls" {
		b.On += ", key " + key
	}
	if name == "limits/set" {
		b.Rate = new(cmp.Or(on.Get("rate"), on.Get("try")))
		b.Replay = p.replay(ctx, b.On, on.Get("try"), cmp.Or(on.Get("over"), "1h"))
	}
	if e, ok := errors.AsType[*actions.Error](err); ok {
		return refused(statusOf(e), "%s.", e.Text), nil
	}
	return &page{Template: "act", Title: a.Title, Body: b}, err
}

// formOfCalls shows how many calls an action would change.
func (p *pages) formOfCalls(ctx context.Context, b *formBody, verbName string, on url.Values, hide func(field, value string)) error {
	verb, _ := actions.Verb(verbName)
	request, err := request(on)
	if err != nil {
		return err
	}
	if len(request.IDs) > 0 {
		b.On = "call " + on.Get("ids")
		return nil
	}
	f, filtered, err := request.Filter()
	if err != nil {
		return err
	}
	if !filtered {
		return &actions.Error{Kind: actions.Bad, Text: "which calls? The address names none"}
	}
	if b.Matched, err = p.Actions.Count(ctx, verb, &f, request); err != nil {
		return err
	}
	b.On = words.Count(b.Matched, "call") + " (" + f.Search() + ")"
	hide("before", strconv.FormatInt(f.Before, 10))
	if b.Typed = b.Matched > actions.MostUnasked; !b.Typed {
		hide("expect", strconv.FormatInt(b.Matched, 10))
	}
	return nil
}

// replay tells how a limit's requests would have fared under a rate; "": it only asks which.
func (p *pages) replay(ctx context.Context, name, rate, since string) *replayBody {
	b := &replayBody{Rate: rate, Since: since, Address: p.Prefix + "/do/limits/set", Limit: name}
	if rate == "" {
		return b
	}
	back, err := words.ParseDuration(since)
	if err == nil {
		b.Replay, err = admin.ReadReplayText(ctx, p.Pool, name, rate, back, mostReplayed)
	}
	if err != nil {
		b.Wrong = err.Error()
	}
	return b
}

// local is an address of these pages; others lead to the first.
func (p *pages) local(path string) string {
	at, err := url.Parse(path)
	if err != nil || at.Host != "" || at.Scheme != "" || !strings.HasPrefix(path, "/") || strings.HasPrefix(path, "//") || strings.Contains(path, "\\") {
		return p.Prefix + "/"
	}
	return p.Prefix + path
}

// request is what a form asks for.
func request(form url.Values) (r actions.Request, err error) {
	r = actions.Request{
		Queue: form.Get("queue"), Limit: form.Get("limit"), Rate: strings.TrimSpace(form.Get("rate")), For: form.Get("for"),
		Reason: form.Get("reason"), Token: form.Get("token"), Status: form.Get("status"), Task: form.Get("task"), Code: form.Get("code"),
		Error: form.Get("error"), Since: form.Get("since"), All: form.Get("all") != "",
	}
	r.Before, _ = strconv.ParseInt(form.Get("before"), 10, 64)
	if form.Has("key") {
		r.Key = new(form.Get("key"))
	}
	if form.Has("shape") {
		r.Shape = new(form.Get("shape"))
	}
	number := func(text string) (int64, error) {
		n, err := strconv.ParseInt(strings.NewReplacer(",", "", " ", "").Replace(text), 10, 64)
		if err != nil {
			err = &actions.Error{Kind: actions.Bad, Text: fmt.Sprintf("%.40q is no whole number", text)}
		}
		return n, err
	}
	if text := form.Get("expect"); text != "" {
		var n int64
		n, err = number(text)
		r.Expect = &n
	}
	if ids := form.Get("ids"); ids != "" {
		for id := range strings.SplitSeq(ids, ",") {
			n, wrong := number(id)
			r.IDs, err = append(r.IDs, n), errors.Join(err, wrong)
		}
	}
	return r, err
}

const (
	mostForm     = 1 << 20 // bytes
	mostReplayed = 10_000  // requests; it takes some tenths of a second
	// actWithin is how long an answer waits for an action. A bulk that takes longer goes on, and the audit has its end.
	actWithin = 3 * time.Second
)

// act carries out what a form asks for, and shows what came of it.
func (p *pages) act(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("noun") + "/" + r.PathValue("verb")
	a, status, why := p.mayAct(r, name)
	if status != 0 {
		p.Guard.Refused(r, status, why)
		p.refuse(w, r, status, why)
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, mostForm)
	if err := r.ParseForm(); err != nil {
		p.refuse(w, r, http.StatusBadRequest, "The form cannot be read: "+err.Error()+".")
		return
	}
	asked, err := request(r.PostForm)
	switch {
	case err != nil:
	case strings.TrimSpace(asked.Reason) == "":
		err = &actions.Error{Kind: actions.Bad, Text: "say why: the audit keeps the reason"}
	case r.PostForm.Has("expect") && asked.Expect == nil:
		err = &actions.Error{Kind: actions.Bad, Text: "type how many calls these are"}
	}
	var result actions.Result
	if err == nil {
		result, err = p.do(r, name, asked, actWithin)
	}
	back := p.local(cmp.Or(r.PostForm.Get("back"), "/"))
	if e, ok := errors.AsType[*actions.Error](err); ok {
		if e.Kind == actions.Conflict {
			p.refuse(w, r, http.StatusConflict, sentence(e.Text))
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), p.Timeout)
		defer cancel()
		shown, failure := p.form(ctx, name, a, r.PostForm, e.Text)
		if failure != nil {
			shown = p.refusal(ctx, failure)
		}
		shown.Status, shown.Who = statusOf(e), access.Of(r.Context())
		p.write(w, shown)
		return
	}
	if err != nil && !errors.Is(err, errGoesOn) {
		shown := p.refusal(r.Context(), err)
		shown.Who = access.Of(r.Context())
		p.write(w, shown)
		return
	}
	shown := &page{Template: "acted", Title: a.Title, Who: access.Of(r.Context()), Body: actedBody{result, err != nil, name, back, p.Prefix + "/audit"}}
	p.write(w, shown)
}

// actedBody is what came of an action.
type actedBody struct {
	actions.Result
	GoesOn bool // it has not ended
	Name   string
	Back   string
	Audit  string
}

// Lines says it.
func (b actedBody) Lines() []string {
	verb, _ := actions.Verb(strings.TrimPrefix(b.Name, "calls/"))
	switch {
	case b.GoesOn:
		return []string{"It goes on, and takes a while. The audit has its end."}
	case !strings.HasPrefix(b.Name, "calls/") && len(b.Changes) == 0:
		return []string{"It was so already."}
	case !strings.HasPrefix(b.Name, "calls/"):
		return b.Changes
	case len(b.Calls) == 1 && !b.Calls[0].Changed:
		return []string{fmt.Sprintf("Call %d was not %s: it is %s.", b.Calls[0].ID, verb.Past, b.Calls[0].Status)}
	case len(b.Calls) > 0:
		return []string{fmt.Sprintf("%s of %s %s.", words.Number(b.Changed), words.Count(int64(len(b.Calls)), "call"), verb.Past)}
	}
	return []string{fmt.Sprintf("%s of %s %s.", words.Number(b.Changed), words.Count(b.Matched, "call"), verb.Past)}
}

var errGoesOn = errors.New("it goes on")

// do carries out an action to its end, even if whoever asked is gone. It waits no longer than it is told; 0: to the end.
func (p *pages) do(r *http.Request, name string, asked actions.Request, wait time.Duration) (actions.Result, error) {
	type ending struct {
		result actions.Result
		err    error
	}
	ctx := context.WithoutCancel(r.Context())
	done := make(chan ending, 1)
	go func() {
		result, err := p.Actions.Do(ctx, name, asked, access.Of(ctx).Name)
		if _, told := errors.AsType[*actions.Error](err); err != nil && !told {
			p.Logger.ErrorContext(ctx, "action failed", "action", name, "by", access.Of(ctx).Name, "err", err)
		}
		done <- ending{result, err}
	}()
	var late <-chan time.Time
	if wait > 0 {
		late = time.After(wait)
	}
	select {
	case e := <-done:
		return e.result, e.err
	case <-late:
		return actions.Result{}, errGoesOn
	case <-r.Context().Done():
		return actions.Result{}, r.Context().Err()
	}
}

func statusOf(e *actions.Error) int {
	return map[actions.Kind]int{
		actions.Bad: http.StatusBadRequest, actions.NotFound: http.StatusNotFound, actions.Conflict: http.StatusConflict,
	}[e.Kind]
}

func sentence(text string) string { return strings.ToUpper(text[:1]) + text[1:] + "." }
