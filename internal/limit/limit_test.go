package limit

import (
	"testing"
	"time"
)

func TestRoomAndNextLook(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	free := Use{Rate: Rate{Units: 50, Window: 5 * time.Second}, Occupied: 20, FirstUntil: now.Add(-4 * time.Second)}
	if got := free.Room(now, 0); got != 30 {
		t.Errorf("Room = %d, want 30", got)
	}
	if got := (Use{Rate: Rate{Units: 10}, Occupied: 12}).Room(now, 0); got != 0 {
		t.Errorf("Room after the rate was lowered = %d, want 0", got)
	}
	if want := now.Add(time.Second + 5*time.Millisecond); !free.NextLook(now, 0).Equal(want) {
		t.Errorf("NextLook = %v, want %v: W and the margin after the first until", free.NextLook(now, 0), want)
	}
	if want := now.Add(time.Second + 8*time.Millisecond); !free.NextLook(now, 3*time.Millisecond).Equal(want) {
		t.Errorf("NextLook does not wait for what the clock gained")
	}
	unstarted := Use{Rate: Rate{Units: 1, Window: time.Second}, Occupied: 1}
	if want := now.Add(1001 * time.Millisecond); !unstarted.NextLook(now, 0).Equal(want) {
		t.Errorf("NextLook with nothing started = %v, want %v", unstarted.NextLook(now, 0), want)
	}
}

func TestGains(t *testing.T) {
	t.Parallel()
	type reading struct{ pg, sent, received int } // ms
	const window = 10 * time.Second
	cases := []struct {
		name     string
		readings []reading
		at       int // ms, Postgres's clock
		want     int // ms; below 0: what the last look lost
	}{
		{"one look tells nothing", []reading{{0, 0, 1}}, 0, 0},
		{"both clocks agree", []reading{{0, 0, 1}, {1000, 1000, 1001}}, 1000, 0},
		{"a step after a long time without a look", []reading{{0, 0, 1}, {36_020_000, 36_000_000, 36_000_000}}, 36_020_000, 20_000},
		{"travel explains the difference", []reading{{5, 0, 5}, {1000, 995, 1002}}, 1000, 0},
		{"set forward by 2 s", []reading{{0, 0, 1}, {3000, 999, 1000}}, 3000, 2000},
		{"set forward, asked within the window", []reading{{0, 0, 1}, {3000, 999, 1000}}, 12_999, 2000},
		{"set forward, the window and the gain have passed", []reading{{0, 0, 1}, {3000, 999, 1000}}, 15_001, 0},
		{"set back below the last reading", []reading{{0, 0, 10}, {-500, 1000, 1010}}, 0, -1510},
		{"set back to above it", []reading{{0, 0, 10}, {400, 1000, 1010}}, 400, -610},
		{"travel explains that less has passed", []reading{{0, 0, 10}, {990, 1000, 1010}}, 990, 0},
		{"drift explains it", []reading{{0, 0, 10}, {989, 1000, 1010}}, 989, 0},
		{"two gains add up", []reading{{0, 0, 1}, {2000, 999, 1000}, {4000, 1999, 2000}}, 4000, 2000},
		{"set forward and back, it is set back once", []reading{{0, 0, 1}, {3000, 100, 101}, {200, 200, 201}, {300, 300, 301}}, 300, 2899},
		{"a slow reading hides no later step", []reading{{500, 0, 500}, {510, 510, 511}, {1000, 600, 601}}, 1000, 399},
		{"a fast clock", []reading{{0, 0, 3}, {110, 100, 103}, {220, 200, 203}, {330, 300, 303}}, 330, 27},
		{"a later gain lets none before it end sooner", []reading{{0, 0, 1}, {3000, 999, 1000}, {15_000, 2000, 2000}}, 16_000, 13_000},
		{"each gain ends after the window, it and all later ones", []reading{{0, 0, 1}, {3000, 999, 1000}, {15_000, 2000, 2000}}, 26_000, 11_000},
		{"a drift within the margin is not kept", []reading{{0, 0, 0}, {10_009, 10_000, 10_000}}, 10_009, 0},
	}
	at := func(n int) time.Time { return time.UnixMilli(int64(n)) }
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var clock Clock
			var gains Gains
			var lost time.Duration
			for _, r := range c.readings {
				by, _, _ := clock.Gained(at(r.pg), at(r.sent), at(r.received), gains.All())
				if lost = min(by, 0); by > 0 {
					gains = append(gains, Gain{at(r.pg), by})
				}
				clock.Saw(at(r.pg), at(r.sent), at(r.received), by, gains.All())
			}
			if got := gains.Within(at(c.at), window) + lost; got != time.Duration(c.want)*time.Millisecond {
				t.Errorf("gained %v, want %d ms", got, c.want)
			}
		})
	}
}

// Until when a request counts that was answered, overtaken, acknowledged, none of it, or lost, and what that rests on, by what each
// kind of limit takes as proof. Times are ms; slack is 100, arrive_within 9,000.
func TestUntil(t *testing.T) {
	t.Parallel()
	ms := func(n int) *time.Duration { return new(time.Duration(n) * time.Millisecond) }
	type want struct {
		until int
		proof Proof
	}
	unknown := want{0, NoProof}
	http := func(s Sending) Arrival { s.Sent, s.Ended = ms(3), *ms(2000); return s.Arrival() }
	custom := func(s Sending) Arrival { s.Own, s.Ended = true, *ms(2000); return s.Arrival() }
	for _, c := range []struct {
		name                 string
		arrival              Arrival
		later, answer, slack want // under anchor start
		finish, ended        want // under anchor finish, and of a concurrency limit, by a later answer
	}{
		{
			"answered soon", http(Sending{Answered: ms(50)}),
			want{50, ProofAnswer},
			want{50, ProofAnswer},
			want{50, ProofAnswer},
			want{50, ProofAnswer},
			unknown,
		},
		{
			"answered late, and overtaken before", http(Sending{Acked: ms(10), Later: ms(60), Answered: ms(900)}),
			want{103, ProofLater},
			want{900, ProofAnswer},
			want{103, ProofSlack},
			want{103, ProofLater},
			want{103, ProofLater},
		},
		{
			"answered late, and only acknowledged", http(Sending{Acked: ms(10), Answered: ms(900)}),
			want{900, ProofAnswer},
			want{900, ProofAnswer},
			want{103, ProofSlack},
			want{900, ProofAnswer},
			unknown,
		},
		{
			"not answered, and acknowledged", http(Sending{Acked: ms(10)}),
			unknown,
			want{11000, Assumed},
			want{103, ProofSlack},
			unknown, unknown,
		},
		{
			"not answered, nor acknowledged", http(Sending{}),
			unknown,
			want{11000, Assumed},
			want{2100, ProofSlack},
			unknown, unknown,
		},
		{
			"not answered, and overtaken late", http(Sending{Acked: ms(10), Later: ms(1500)}),
			want{1500, ProofLater},
			want{11000, Assumed},
			want{103, ProofSlack},
			want{2100, ProofLater},
			want{2100, ProofLater},
		},
		{
			"a custom handler that ended well", custom(Sending{}),
			want{2000, ProofAnswer},
			want{2000, ProofAnswer},
			want{2000, ProofAnswer},
			want{2000, ProofAnswer},
			want{2100, ProofSlack},
		},
		{
			"a custom handler that gave up", custom(Sending{GaveUp: true}),
			want{2100, ProofSlack},
			want{11000, ProofSlack},
			want{2100, ProofSlack},
			want{2100, ProofSlack},
			want{2100, ProofSlack},
		},
		{
			"a custom handler whose client had no answer", custom(Sending{GaveUp: true, Sent: ms(3), Acked: ms(10)}),
			unknown,
			want{11000, Assumed},
			want{103, ProofSlack},
			unknown, unknown,
		},
		{
			"lost, its host known", LostArrival(*ms(250), *ms(4000), nil, nil, true),
			unknown,
			want{14250, Assumed},
			want{5350, ProofSlack},
			unknown, unknown,
		},
		{
			"lost, overtaken before", LostArrival(*ms(250), *ms(4000), ms(10), ms(60), true),
			want{350, ProofLater},
			want{14250, Assumed},
			want{350, ProofSlack},
			want{9100, ProofLater},
			want{9100, ProofLater},
		},
		{
			"lost, its host unknown", LostArrival(*ms(250), *ms(4000), nil, nil, false),
			want{9250, Assumed},
			want{14250, Assumed},
			want{5350, ProofSlack},
			want{18000, Assumed},
			want{18000, Assumed},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			is := func(what string, until time.Duration, proof Proof, w want) {
				t.Helper()
				if proof != w.proof || proof != NoProof && until != *ms(w.until) {
					t.Errorf("%s: until %s by %q, want %d ms by %q", what, until, proof, w.until, w.proof)
				}
			}
			rule := Unanswered{Proof: ProofLater, Slack: *ms(100), ArriveWithin: *ms(9000)}
			until, proof := c.arrival.Until(AnchorStart, rule)
			is("by a later answer", until, proof, c.later)
			until, proof = c.arrival.Until(AnchorFinish, rule)
			is("by a later answer, anchor finish", until, proof, c.finish)
			if c.arrival.EndBy == nil {
				until, proof = c.arrival.Ended(rule)
				is("of a concurrency limit", until, proof, c.ended)
			}
			rule.Proof = ProofSlack
			until, proof = c.arrival.Until(AnchorStart, rule)
			is("by slack", until, proof, c.slack)
			rule.Proof, rule.Slack = ProofAnswer, rule.ArriveWithin
			until, proof = c.arrival.Until(AnchorStart, rule)
			is("by its answer", until, proof, c.answer)
		})
	}
}
