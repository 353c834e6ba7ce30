package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func problemsOf(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(Source{Path: file}); err != nil {
		return err.Error()
	}
	return ""
}

func TestHugeFile(t *testing.T) {
	t.Parallel()
	comment := "# " + strings.Repeat("x", maxSize-3)
	if got := problemsOf(t, comment+"\n"); got != "" {
		t.Errorf("a file of %d bytes: %s", maxSize, got)
	}
	if got := problemsOf(t, comment+"x\n"); !strings.Contains(got, "config.yaml: cannot be read: it is larger than 1048576 bytes") {
		t.Errorf("a file of %d bytes: %.300s", maxSize+1, got)
	}
}

// Of a long line what stands about the mistake is shown, with the caret beneath it.
func TestLongLine(t *testing.T) {
	t.Parallel()
	many := strings.Repeat("q: {}, ", 100)
	for _, text := range []string{
		"queues: {r: {bogus: 1}, " + many + "}", "queues: {" + many + "r: {bogus: 1}, " + many + "}", "queues: {" + many + "r: {bogus: 1}}",
	} {
		found := false
		lines := strings.Split(problemsOf(t, text), "\n")
		for i, line := range lines {
			if len([]rune(line)) > 200 {
				t.Errorf("a line of %d characters: %s", len([]rune(line)), line)
			}
			if strings.Contains(line, "queues.r.bogus") {
				shown, caret := []rune(lines[i+1]), len([]rune(lines[i+2]))-1
				found = caret+5 <= len(shown) && string(shown[caret:caret+5]) == "bogus"
			}
		}
		if !found {
			t.Errorf("no caret under bogus:\n%.1000s", strings.Join(lines, "\n"))
		}
	}
}
