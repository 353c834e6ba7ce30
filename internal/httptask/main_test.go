package httptask

import (
	"io"
	"log"
	"os"
	"testing"
)

// The standard logger is net/http's alone: what it says of servers that misbehave, as they are meant to, would
// hide what a test that fails has to say.
func TestMain(m *testing.M) {
	log.SetOutput(io.Discard)
	os.Exit(m.Run())
}
