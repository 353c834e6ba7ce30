// Check explores every configuration of the model and says what it found. It fails when a rule does
// not hold.
//
//	go run -C verification ./model/check [-differences] [CONFIGURATION...]
//
// With -differences it prints, for each place where the code is known to differ from the model, the
// steps that show it.
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/callq/callq/verification/model"
)

func main() {
	differences := flag.Bool("differences", false, "show where the code differs from the model, and what comes of it")
	flag.Parse()
	if *differences {
		showDifferences()
		return
	}
	var chosen []model.Configuration
	for _, c := range model.Configurations() {
		if flag.NArg() == 0 || slices.Contains(flag.Args(), c.Name) {
			chosen = append(chosen, c)
		}
	}
	if !explore(chosen) {
		os.Exit(1)
	}
}

// explore explores them, one after the other, and says whether every rule held.
func explore(configurations []model.Configuration) (held bool) {
	begun := time.Now()
	var states, transitions int
	held = true
	for _, c := range configurations {
		r := model.Explore(c, 0, runtime.GOMAXPROCS(0))
		fmt.Printf("%-9s %s; faults at most: %s\n%9s %s\n", c.Name, c.About, c.FaultsAtMost(), "", r)
		if r.Violation != nil {
			held = false
			fmt.Println(r.Violation)
		}
		states, transitions = states+r.States, transitions+r.Transitions
	}
	fmt.Printf("in all %d states, distinct within their configuration, %d transitions, %.1f s", states, transitions, time.Since(begun).Seconds())
	if held {
		fmt.Print("; every rule held in every one")
	}
	fmt.Printf("\n%d places are known where the code differs (-differences shows them)\n", len(model.Differences()))
	return held
}

func showDifferences() {
	for _, d := range model.Differences() {
		fmt.Printf("%s: %s\n%s\n", d.Where, d.What, model.Explore(d.Configuration(), 0, 1).Violation)
	}
}
