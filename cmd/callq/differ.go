package main

import (
	"fmt"
	"strings"

	"github.com/callq/callq/dispatcher"
	"github.com/callq/callq/internal/report"
)

// printDifferences says of which limits and queues live processes publish different rules, what each
// wants, and what holds.
func (p *program) printDifferences(limits []report.Limit, queues []report.Queue) {
	for _, l := range limits {
		p.printDifference("limit "+l.Name, l.Wanted, l.Holds())
	}
	for _, q := range queues {
		p.printDifference("queue "+q.Name, q.Wanted, q.Holds())
	}
}

func (p *program) printDifference(what string, wanted []dispatcher.Want, holds string) {
	if len(wanted) == 0 {
		return
	}
	fmt.Fprintf(p.stdout, "\nlive processes differ on %s\n", printable(what))
	for _, w := range wanted {
		fmt.Fprintf(p.stdout, "  %s: %s\n", printable(strings.Join(w.By, ", ")), printable(w.Rule))
	}
	fmt.Fprintf(p.stdout, "  in force: %s\n", printable(holds))
}
