// Command callq makes third-party API calls from a Postgres queue, exactly at the limits the APIs
// set. docs/guarantees.md says what it promises.
package main

import (
	"context"
	"os"
	_ "time/tzdata" // for hours, where the machine has no zones: an image without a system
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.Environ()))
}
