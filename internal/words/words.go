// Package words writes numbers as people do, and reads lengths of time.
package words

import "fmt"

// Number writes a number with commas: 2,483.
func Number(n any) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// Count writes so many of something: 1 call, 2,483 calls.
func Count(n int64, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return Number(n) + " " + noun
}

// Of writes so many of a number of something: 1 of 2 calls.
func Of(n, all int64, noun string) string { return Number(n) + " of " + Count(all, noun) }

// Verb is the form of a verb for so many.
func Verb(n int64, one, more string) string {
	if n == 1 {
		return one
	}
	return more
}
