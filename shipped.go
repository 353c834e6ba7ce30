// Package callq holds what is shipped with the program: its documented configuration. Producers use
// package callqueue, workers package tasks.
package callq

import _ "embed" // for ConfigYAML

// ConfigYAML is config.yaml: every key at its default, explained.
//
//go:embed config.yaml
var ConfigYAML string
