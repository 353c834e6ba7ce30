// Command callq makes third-party API calls from a Postgres queue, never above the limits that the
// APIs set. docs/guarantees.md has what it promises.
package main

import (
	"context"
	"io"
	"log"
	"os"
	_ "time/tzdata" // time zones, for images that have none
)

func main() {
	log.SetOutput(io.Discard) // net/http tells Go's standard logger what an API answered unasked
	err := run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.Environ())
	os.Exit(exitCode(os.Stderr, err))
}
