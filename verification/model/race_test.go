//go:build race

package model

// raced says whether the race detector slows all this down.
const raced = true
