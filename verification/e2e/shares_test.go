//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/callq/callq/internal/ledger/verify"
	"github.com/callq/callq/verification/fakeapi"
)

// Interactive calls beside a backlog in one limit: below their share they wait for the next unit, not for the backlog, and the limit is
// used to the full by either alone. With -figures above 1 the backlog is 100,000 calls, and figures out of reach fail the test.
func TestSharesAtTheDoor(t *testing.T) {
	const units, window = 100, time.Second
	backlog, lasts := 5000, 8*time.Second // of each phase
	if *figures > 1 {
		backlog, lasts = 100_000, 30*time.Second
	}
	s := newStack(t, fmt.Sprintf("limits: {llm: {rate: %d/%.0fs, shares: {chat: 30%%}}}\nqueues: {chat: {limits: [llm]}, import: {limits: [llm]}}",
		units, window.Seconds()), fakeapi.Config{Latency: 10 * time.Millisecond})
	s.start(2, 2)
	s.await(time.Minute, `SELECT count(*) = 2 FROM callq.call_workers`)
	s.exec(`INSERT INTO call_queue (queue, call_data) SELECT 'import', jsonb_build_object('url', $1::text || '?key=import') FROM generate_series(1, $2)`,
		s.api.URL(), backlog)
	s.await(time.Minute, `SELECT count(*) >= 2 FROM call_attempts`)
	from := s.api.Count()
	s.served(from + int(units*lasts.Seconds())) // a phase: as many as the limit lets through in it
	alone := s.api.Requests()[from:]

	const rate = 20.0 // calls a second
	chats := int(rate * lasts.Seconds())
	inserted := make([]time.Time, chats)
	begin, next := time.Now(), 0.0
	for i := range inserted {
		next += rand.ExpFloat64() / rate
		time.Sleep(time.Until(begin.Add(time.Duration(next * float64(time.Second)))))
		inserted[i] = time.Now()
		s.exec(`INSERT INTO call_queue (queue, call_data) VALUES ('chat', jsonb_build_object('url', $1::text))`, fmt.Sprintf("%s%d?key=chat", s.api.URL(), i))
	}
	s.await(time.Minute, `SELECT count(*) = $1 FROM call_queue WHERE queue = 'chat' AND status = 'done'`, chats)
	both := s.api.Requests()[from+len(alone):]
	waits := make([]time.Duration, 0, chats)
	for _, r := range both {
		var i int
		if _, err := fmt.Sscanf(r.Path, "/%d", &i); r.Key == "chat" && err == nil {
			waits = append(waits, r.At.Sub(inserted[i]))
		}
	}
	slices.Sort(waits)
	at := func(share float64) time.Duration {
		return waits[int(share*float64(len(waits)-1))].Round(time.Millisecond)
	}

	s.exec(`UPDATE call_queue SET status = 'cancelled', finished_at = now() WHERE queue = 'import' AND status IN ('new', 'error')`)
	from = s.api.Count()
	s.exec(`INSERT INTO call_queue (queue, call_data) SELECT 'chat', jsonb_build_object('url', $1::text || '?key=chat') FROM generate_series(1, $2)`,
		s.api.URL(), int(units*lasts.Seconds()))
	s.await(time.Minute+2*lasts, `SELECT count(*) = 0 FROM call_queue WHERE status IN ('new', 'error', 'dispatched')`)
	other := s.api.Requests()[from:]

	s.exec(`INSERT INTO call_queue (queue, call_data) SELECT q, jsonb_build_object('url', $1::text || '?key=' || q)
		FROM unnest('{chat,import}'::text[]) q, generate_series(1, $2)`, s.api.URL(), int(units*max(8, lasts.Seconds()/2)))
	s.await(time.Minute+2*lasts, `SELECT count(*) = 0 FROM call_queue WHERE status IN ('new', 'error', 'dispatched')`)
	out, code := s.command("verify", "-o", "json")
	if code != 0 {
		t.Fatalf("callq verify exits with %d: %s", code, out)
	}
	var proof struct{ Shares []verify.ShareUse }
	if err := json.Unmarshal([]byte(out), &proof); err != nil {
		t.Fatal(err)
	}
	for _, share := range proof.Shares {
		least := 0.0
		if share.LeastPercent != nil {
			least = *share.LeastPercent
		}
		t.Logf("%s, guaranteed %.0f %%, had at least %.1f %% of ten windows in which it waited", share.Share, share.Percent, least)
		if least < 0.7*share.Percent { // each of two dispatchers goes by what it has claimed itself
			t.Errorf("share %s had %.1f %%, want %.0f %%", share.Share, least, share.Percent)
		}
	}
	if len(proof.Shares) != 2 {
		t.Errorf("verify knows %d shares", len(proof.Shares))
	}

	use := func(requests []fakeapi.Request) float64 {
		return float64(len(requests)-1) / units / (requests[len(requests)-1].At.Sub(requests[0].At).Seconds() / window.Seconds())
	}
	imports := slices.DeleteFunc(slices.Clone(both), func(r fakeapi.Request) bool { return r.Key == "chat" })
	t.Logf("chat waits %s at the median, %s p99, %s at most; with both %.1f %% of the limit is used, by import alone %.1f %%, by chat alone %.1f %%",
		at(0.5), at(0.99), at(1), 100*use(both), 100*use(alone), 100*use(other))
	var all []time.Time
	for _, r := range s.api.Requests() {
		all = append(all, r.At)
	}
	if most := mostIn(all, window); most > units {
		t.Errorf("%d requests within %s; %d are allowed", most, window, units)
	}
	s.nothingTwice()
	s.verify()
	if len(waits) != chats {
		t.Errorf("%d requests of %d chats", len(waits), chats)
	}
	if len(imports) == 0 {
		t.Error("beside chats no import is made")
	}
	if *figures > 1 && (at(0.99) > window*11/10 || use(alone) < 0.97 || use(other) < 0.97) {
		t.Errorf("want p99 of %s, and 97 %% used by either alone", window*11/10)
	}
}
