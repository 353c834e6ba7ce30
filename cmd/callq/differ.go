package main

import (
	"fmt"
	"strings"

	"github.com/callq/callq/internal/admin"
)

// printDifference says of a setting in which live workers differ what each has, and what holds.
func (p *program) printDifference(what string, wanted []admin.Want, holds string) {
	if len(wanted) == 0 {
		return
	}
	fmt.Fprintf(p.stdout, "\nlive processes differ on %s\n", printable(what))
	for _, w := range wanted {
		fmt.Fprintf(p.stdout, "  %s: %s\n", printable(strings.Join(w.By, ", ")), printable(w.Rule))
	}
	fmt.Fprintf(p.stdout, "  in force: %s\n", printable(holds))
}
