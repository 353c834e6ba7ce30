package words

import "testing"

func TestWords(t *testing.T) {
	t.Parallel()
	for got, want := range map[string]string{
		Count(0, "call"): "0 calls", Count(1, "call"): "1 call", Count(2483, "call"): "2,483 calls",
		Of(1, 1, "call"): "1 of 1 call", Of(1, 2, "call"): "1 of 2 calls", Of(0, 66_000, "call"): "0 of 66,000 calls",
		Verb(1, "is", "are"): "is", Verb(2, "is", "are"): "are", Number(-1234567): "-1,234,567", Number(100): "100",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
