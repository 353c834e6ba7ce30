package verify

import (
	"testing"
	"time"
)

// What a share had while its calls waited is compared with what all had then: not before, nor while the limit was not used up.
func TestShareUse(t *testing.T) {
	t.Parallel()
	begin := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	claim := func(share string, due, at float64) shareClaim {
		second := func(s float64) time.Time { return begin.Add(time.Duration(s * float64(time.Second))) }
		return shareClaim{Limit: "llm", Share: share, Units: 1, Due: second(due), At: second(at), Rate: 10, Window: time.Second, Percent: 30}
	}
	var claims []shareClaim
	for i := range 300 { // 10 a second; each fourth a chat's from 4 s on, when the first of them waits
		at := float64(i) / 10
		switch {
		case at >= 4 && i%4 == 0:
			claims = append(claims, claim("chat", 4, at))
		default:
			claims = append(claims, claim("rest", 0, at))
		}
	}
	claims = append(claims, claim("chat", 40, 49)) // it waited, and nothing was claimed
	r := &Report{}
	r.addShares(claims)
	if len(r.Shares) != 2 {
		t.Fatalf("%+v", r.Shares)
	}
	chat, rest := r.Shares[0], r.Shares[1]
	if chat.Share != "chat" || chat.Units != 66 || chat.LeastPercent == nil || *chat.LeastPercent != 25 || chat.LeastFrom.Sub(begin) < 4*time.Second {
		t.Errorf("%+v, %v", chat, chat.LeastPercent)
	}
	if chat.LongestWait != 25600 {
		t.Errorf("a chat waited for %v ms, want 25600", chat.LongestWait)
	}
	if rest.LeastPercent == nil || *rest.LeastPercent != 75 {
		t.Errorf("%+v, %v", rest, rest.LeastPercent)
	}
}
